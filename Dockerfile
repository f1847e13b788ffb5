# docs/how-to/serve.md says how to run it.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python -m venv /opt/sterna && /opt/sterna/bin/pip install --no-cache-dir '/source[server]'

FROM python:3.12-slim
COPY --from=build /opt/sterna /opt/sterna
# A number, so that who starts it can see that it is not root.
RUN useradd --system --uid 10001 --create-home --home-dir /data sterna
USER 10001
VOLUME /data
ENV PATH=/opt/sterna/bin:$PATH HF_HOME=/data/hub STERNA_CACHE=/data/cache STERNA_HOST=0.0.0.0
EXPOSE 8080
# A model may take minutes to be downloaded the first time.
HEALTHCHECK --start-period=10m --interval=10s --timeout=3s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health')"]
# The process is the server itself, which drains at SIGTERM.
ENTRYPOINT ["sterna", "serve"]
