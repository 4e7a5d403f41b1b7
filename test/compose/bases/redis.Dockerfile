# Takes the place of redis: the Redis of Debian.
FROM scratch
ADD redis.tar /
COPY redis-entrypoint /usr/local/bin/docker-entrypoint.sh
RUN install -d -o redis -g redis /data
VOLUME /data
WORKDIR /data
EXPOSE 6379
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["redis-server"]
