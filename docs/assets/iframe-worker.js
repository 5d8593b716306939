// The search runs in a worker, which browsers refuse to pages that are opened from a disk: there it runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script src="${new URL(url, location.href).href}"></script>`;
      this.frame.onload = () => {
        this.inner = this.frame.contentWindow;
        this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      document.body.appendChild(this.frame);
    }

    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
