package stack

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
)

// RedisOptions say how to run redis-server.
type RedisOptions struct {
	// Dir is its folder, in which it keeps nothing.
	Dir string
	// CPUs pins it to processors, as in Command; empty leaves it free.
	CPUs string
}

// StartRedis runs redis-server on a free port of 127.0.0.1 until the process is stopped, and
// returns its host:port.
func StartRedis(ctx context.Context, o RedisOptions) (*Process, string, error) {
	port, err := FreePort()
	if err != nil {
		return nil, "", err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p, err := Start(Command{Name: "redis", Path: "redis-server", CPUs: o.CPUs, Args: []string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", o.Dir, "--save", "", "--appendonly", "no",
	}})
	if err != nil {
		return nil, "", err
	}
	if err := p.AwaitReady(ctx, func(ctx context.Context) error { return pingRedis(ctx, address) }); err != nil {
		p.Kill()
		return nil, "", err
	}
	return p, address, nil
}

// pingRedis returns nil if redis-server answers PING.
func pingRedis(ctx context.Context, address string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	answer := make([]byte, len("+PONG"))
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if string(answer) != "+PONG" {
		return fmt.Errorf("redis-server answers PING with %q", answer)
	}
	return nil
}
