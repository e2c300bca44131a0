"""Recorded traces of published data sets, as samples of the environment `recorded`.

trace_folder      `Trace`, and the folder that `mmrl data traces` writes
tfrecord          records of TensorFlow, and the features in them
android_control   AndroidControl
mind2web          Mind2Web with screenshots
"""
