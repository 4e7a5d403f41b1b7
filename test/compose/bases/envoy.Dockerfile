# Takes the place of envoyproxy/envoy: Debian with the Envoy of PyPI.
FROM scratch
ADD debian.tar /
RUN groupadd --gid 101 envoy && useradd --uid 101 --gid 101 --no-create-home envoy
COPY envoy /usr/local/bin/envoy
COPY envoy-entrypoint /docker-entrypoint.sh
EXPOSE 10000
ENTRYPOINT ["/docker-entrypoint.sh"]
CMD ["envoy", "-c", "/etc/envoy/envoy.yaml"]
