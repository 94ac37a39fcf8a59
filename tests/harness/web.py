"""nginx, with whatever configuration a test wants, and certificates."""

import signal


def start_nginx(r, need, port, http, *, top="", workers=1, name="nginx", daemon=False):
    """nginx with this in its http block, and `top` outside of it. A daemon, which only its process id (NAME.pid) tells of, takes signals
    that others ignore."""
    conf = r.tmp / f"{name}.conf"
    conf.write_text(f"""
        user root; worker_processes {workers}; daemon {'on' if daemon else 'off'}; pid {r.tmp}/{name}.pid; error_log {r.tmp}/{name}.log;
        {top}
        events {{ worker_connections 512; }}
        http {{
            access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000; client_max_body_size 100m;
            client_body_temp_path {r.tmp}/body; proxy_temp_path {r.tmp}/proxy; fastcgi_temp_path {r.tmp}/fastcgi;
            uwsgi_temp_path {r.tmp}/uwsgi; scgi_temp_path {r.tmp}/scgi;
            {http}
        }}""")
    command = [need("nginx"), "-c", conf, "-p", r.tmp, "-e", f"{r.tmp}/{name}.log"]
    if daemon:
        r.run(command)
        r.wait_port(port)
    else:
        r.server(command, port, stop_signal=signal.SIGQUIT)


def certificate(r, need):
    """A key and a certificate for localhost that signs itself; returns the lines of nginx that use it."""
    r.run([need("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
           "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", r.tmp / "key.pem", "-out", r.tmp / "cert.pem"],
          plain=True)
    return f"ssl_certificate {r.tmp}/cert.pem; ssl_certificate_key {r.tmp}/key.pem;"
