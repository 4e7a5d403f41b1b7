package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// recorder stands between a control plane and its Redis and notes the scripts that pass, so that
// they can be sent again by a client that does nothing else.
type recorder struct {
	listener net.Listener
	redis    string

	mu      sync.Mutex
	noting  bool
	scripts [][]any
	failure error
}

// record starts a recorder in front of a Redis and returns its address.
func (r *recorder) record(redis string) (string, error) {
	var err error
	r.redis = redis
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return "", err
	}
	go func() {
		for {
			c, err := r.listener.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	return r.listener.Addr().String(), nil
}

// pass carries one connection. It ends when either side does.
func (r *recorder) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", r.redis)
	if err != nil {
		r.fail(err)
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(from, to) // The end of one direction ends both.
		from.Close()
	}()
	commands := bufio.NewReader(io.TeeReader(from, to))
	for {
		command, err := readCommand(commands)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				r.fail(err)
			}
			return
		}
		r.note(command)
	}
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = errors.Join(r.failure, err)
}

// note keeps a command if it runs a script with the number of keys of a full lease batch, which no
// other script has.
func (r *recorder) note(command []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.noting || len(command) < 3 || !strings.EqualFold(string(command[0].([]byte)), "evalsha") {
		return
	}
	if n, err := strconv.Atoi(string(command[2].([]byte))); err == nil && n == full {
		r.scripts = append(r.scripts, command)
	}
}

// during notes scripts while f runs, and returns them.
func (r *recorder) during(f func() error) ([][]any, error) {
	r.mu.Lock()
	r.noting, r.scripts = true, nil
	r.mu.Unlock()
	err := f()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noting = false
	if err = errors.Join(err, r.failure); err == nil && len(r.scripts) == 0 {
		err = errors.New("no script has passed on the way to Redis")
	}
	return r.scripts, err
}

// readCommand reads a command of the Redis protocol: an array of bulk strings.
func readCommand(in *bufio.Reader) ([]any, error) {
	n, err := readLength(in, '*')
	if err != nil {
		return nil, err
	}
	command := make([]any, n)
	for i := range command {
		size, err := readLength(in, '$')
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		command[i] = text[:size]
	}
	return command, nil
}

func readLength(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if line[0] != kind || err != nil || n < 0 {
		return 0, fmt.Errorf("not the Redis protocol: %q", line)
	}
	return n, nil
}

// replay sends scripts over several connections, each as soon as the connection's last script is
// answered. It returns the answers a second.
func replay(
	ctx context.Context, address string, scripts [][]any, connections int, during time.Duration,
) (float64, error) {
	client := redis.NewClient(&redis.Options{
		Addr: address, PoolSize: connections, MaxRetries: -1, DisableIdentity: true,
	})
	defer client.Close()
	var answered, next atomic.Int64
	errs := make([]error, connections)
	var all sync.WaitGroup
	begin := time.Now()
	for i := range connections {
		all.Go(func() {
			for errs[i] == nil && time.Since(begin) < during {
				script := scripts[int(next.Add(1))%len(scripts)]
				if _, errs[i] = client.Do(ctx, script...).Int64Slice(); errs[i] == nil {
					answered.Add(1)
				}
			}
		})
	}
	all.Wait()
	return float64(answered.Load()) / time.Since(begin).Seconds(), errors.Join(errs...)
}
