"""Public doors of other libraries, through which their models call these ops."""
