// Pictures grow when they are clicked, and videos of one row play together. Listens on the whole page, because
// Gradio writes its parts anew.
(() => {
  const close = () => document.querySelector('.mm-large')?.remove();

  const enlarge = (image) => {
    close();
    const large = document.createElement('div');
    large.className = 'mm-large';
    large.setAttribute('role', 'dialog');
    large.setAttribute('aria-label', image.alt);
    const shown = document.createElement('img');
    shown.src = image.src;
    shown.alt = image.alt;
    const bar = document.createElement('div');
    for (const [text, act] of [
      ['smooth / square pixels', () => shown.classList.toggle('smooth')],
      ['strong contrast', () => shown.classList.toggle('contrast')],
      ['close', close],
    ]) {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = text;
      button.addEventListener('click', act);
      bar.append(button);
    }
    const title = document.createElement('p');
    title.textContent = image.alt;
    large.append(bar, shown, title);
    large.addEventListener('click', (event) => { if (event.target === large) close(); });
    document.body.append(large);
    bar.lastChild.focus();
  };

  const videosOf = (control) => [...control.previousElementSibling.querySelectorAll('video')];

  const tell = (control) => {
    const first = videosOf(control)[0];
    if (!first) return;
    control.querySelector('output').textContent = `${first.currentTime.toFixed(2)} s`;
    if (first.duration) control.querySelector('input').value = 1000 * first.currentTime / first.duration;
  };

  const seek = (control, time) => {
    for (const video of videosOf(control)) {
      video.pause();
      video.currentTime = Math.min(Math.max(0, time), Math.max(0, (video.duration || 0) - 0.001));
    }
    control.querySelector('[data-do=play]').textContent = 'Play';
    setTimeout(() => tell(control), 80);
  };

  const play = (control) => {
    const videos = videosOf(control);
    const button = control.querySelector('[data-do=play]');
    if (button.textContent === 'Pause') {
      seek(control, videos[0]?.currentTime ?? 0);
      return;
    }
    const start = videos[0]?.currentTime ?? 0;
    for (const video of videos) video.currentTime = start;
    Promise.all(videos.map((video) => video.play())).catch(() => {});
    button.textContent = 'Pause';
    const follow = () => {
      if (button.textContent !== 'Pause' || !button.isConnected) return;
      tell(control);
      requestAnimationFrame(follow);
    };
    follow();
  };

  document.addEventListener('click', (event) => {
    const zoom = event.target.closest('.mm-zoom');
    if (zoom) enlarge(zoom.querySelector('img'));
    const act = event.target.closest('.mm-control [data-do]');
    if (!act) return;
    const control = act.closest('.mm-control');
    const frame = 1 / Number(control.querySelector('input').dataset.fps);
    const now = videosOf(control)[0]?.currentTime ?? 0;
    // the middle of a frame, so that no browser rounds to its neighbour
    const place = Math.floor(now / frame + 1e-6) + (act.dataset.do === 'on' ? 1 : -1);
    if (act.dataset.do === 'play') play(control);
    else seek(control, (Math.max(0, place) + 0.5) * frame);
  });
  document.addEventListener('input', (event) => {
    const control = event.target.closest?.('.mm-control');
    if (!control) return;
    seek(control, event.target.value / 1000 * (videosOf(control)[0]?.duration || 0));
  });
  document.addEventListener('keydown', (event) => { if (event.key === 'Escape') close(); });
})();
