package stack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Redis is a running redis-server that keeps nothing on disk.
type Redis struct {
	*Process
	// Port is where it listens, on 127.0.0.1.
	Port int
}

// StartRedis runs redis-server and waits until it answers, as long as ctx allows. A port of 0 is chosen.
func StartRedis(ctx context.Context, port int, log io.Writer) (*Redis, error) {
	path, err := RedisBinary()
	if err != nil {
		return nil, err
	}
	if port == 0 {
		if port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	r := &Redis{Port: port}
	r.Process, err = Start(Command{
		Name: "redis", Path: path, Out: log, Err: log,
		Args: []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", os.TempDir()},
	})
	if err != nil {
		return nil, err
	}
	if err := r.AwaitReady(ctx, r.ping); err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

func (r *Redis) ping(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && strings.TrimSpace(line) != "+PONG" {
		err = fmt.Errorf("redis-server answers %q", line)
	}
	return err
}

// URL is what `weir serve --redis-url` takes.
func (r *Redis) URL() string { return fmt.Sprintf("redis://127.0.0.1:%d/0", r.Port) }

// Stop ends redis-server, within three seconds.
func (r *Redis) Stop() { r.Process.Stop(2 * time.Second) }
