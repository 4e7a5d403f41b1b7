// Package redistest starts a real redis-server for a test. A machine without one fails the test:
// nothing is skipped and nothing is imitated.
package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = 30 * time.Second
	attempts     = 5
)

// Server is a running redis-server on a port of its own. Unless options say otherwise it keeps
// nothing on disk: after Kill and Restart it is empty.
type Server struct {
	t    testing.TB
	port int
	// arguments are the arguments of the command for a port, env is added to its environment.
	arguments func(port int) []string
	env       []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	log  bytes.Buffer  // to be read only then
}

// Start starts a server with further command-line options, like "--appendonly", "yes". It ends with
// the test.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	return startEnv(t, nil, options...)
}

// startEnv starts a server with additions to its environment, like "NAME=value".
func startEnv(t testing.TB, env []string, options ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	return launch(t, env, func(port int) []string {
		return append([]string{
			"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
			"--daemonize", "no",
		}, options...)
	})
}

func launch(t testing.TB, env []string, arguments func(port int) []string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("redis-server is not installed: %v; tools/setup.sh redis installs it", err)
	}
	s := &Server{t: t, arguments: arguments, env: env}
	t.Cleanup(s.Kill)
	var err error
	for range attempts { // Another process may take the port between choosing and using it.
		s.port = freePort(t)
		if err = s.start(); err == nil {
			return s
		}
	}
	t.Fatal(err)
	return nil
}

// Addr returns host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL returns the address as clients want it.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// Kill ends the server at once, as a crash would. It is harmless on a dead server.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // It fails only if the process has ended by itself.
	<-s.done
	s.cmd = nil
}

// Restart starts a killed server again on the same port, and ends it first if it runs.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
}

// Pause stops the server without closing connections: clients see silence. Resume ends it.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatal("the server does not run")
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Do sends one command and returns the answer: a line as it is sent, like +OK or :1, but of texts
// the text, and of lists the elements, one a line. Arguments must not hold spaces or line breaks.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	answer, err := s.ask(strings.Join(args, " "))
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// Has reports whether the server has a key. Sentinels end the connections of a server that they
// give another role, so it is asked again.
func (s *Server) Has(key string) bool {
	s.t.Helper()
	answer, err := s.ask("EXISTS " + key)
	for again := 0; err != nil; again++ {
		if again == 3 {
			s.t.Fatal(err)
		}
		answer, err = s.ask("EXISTS " + key)
	}
	return answer == ":1"
}

// IsPrimary reports whether the server takes itself for a primary.
func (s *Server) IsPrimary() bool { return strings.HasPrefix(s.Role(), "master") }

// Role returns the server's answer to ROLE, a line for each of its elements. A server whose role
// changes ends its clients' connections, and has none then.
func (s *Server) Role() string {
	role, err := s.ask("ROLE")
	if err != nil {
		return ""
	}
	return role
}

// await asks the server until the answer holds a text.
func (s *Server) await(text string, args ...string) {
	s.t.Helper()
	var answer string
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if answer = s.Do(args...); strings.Contains(answer, text) {
			return
		}
	}
	s.t.Fatalf("%s still says\n%s\nand not %s", strings.Join(args, " "), answer, text)
}

// awaitReplica waits until the server's replica has its state.
func (s *Server) awaitReplica() {
	s.t.Helper()
	s.await("state=online", "INFO", "replication")
}

func (s *Server) start() error {
	s.mu.Lock()
	s.log.Reset()
	cmd, done := exec.Command("redis-server", s.arguments(s.port)...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.Env = append(os.Environ(), s.env...)
	err := cmd.Start()
	if err == nil {
		s.cmd, s.done = cmd, done
		go func() {
			_ = cmd.Wait() // It is killed, so it ends with an error.
			close(done)
		}()
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(startTimeout)
	for {
		if s.answers(cmd.Process.Pid) {
			return nil
		}
		select {
		case <-ticker.C:
			continue
		case <-done:
		case <-timeout:
		}
		s.Kill()
		return fmt.Errorf("redis-server did not start:\n%s", s.log.String())
	}
}

// answers reports whether the process itself answers on the port, not another server that took it
// first.
func (s *Server) answers(pid int) bool {
	text, err := s.ask("INFO server")
	if err != nil || !strings.Contains(text, fmt.Sprintf("process_id:%d\r\n", pid)) {
		return false
	}
	text, err = s.ask("PING") // Until it has read its files it says that it is loading.
	return err == nil && text == "+PONG"
}

func (s *Server) ask(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	return answer(bufio.NewReader(conn))
}

// answer reads one answer of Redis' protocol.
func answer(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSpace(line)
	n, notNumber := strconv.Atoi(line[min(1, len(line)):])
	switch {
	case notNumber != nil || n < 0:
		return line, nil
	case line[0] == '$':
		text := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	case line[0] == '*':
		elements := make([]string, n)
		for i := range elements {
			if elements[i], err = answer(r); err != nil {
				return "", err
			}
		}
		return strings.Join(elements, "\n"), nil
	}
	return line, nil
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
