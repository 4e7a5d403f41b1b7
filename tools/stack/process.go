package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command is a program to run.
type Command struct {
	// Name stands before each line of output and in errors.
	Name string
	// Path is the program, Args are its arguments.
	Path string
	Args []string
	// Env is added to the launcher's environment; a later value of a name wins.
	Env []string
	// WithoutEnv begins the names of the launcher's variables that the command does not get; if it
	// is empty, the command gets all.
	WithoutEnv string
	// Dir is the working directory; empty is the launcher's.
	Dir string
	// CPUs are the processors that the process may run on, as taskset takes them, like 0,2-3; empty
	// is the launcher's.
	CPUs string
	// Out and Err, if not nil, receive standard output and standard error line by line, prefixed
	// with Name.
	Out, Err io.Writer
}

// Process is a running child. Its methods may be called from any goroutine.
type Process struct {
	// Name is the Command's.
	Name string
	// Stdout and Stderr keep the end of the process's output.
	Stdout, Stderr *Log

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start runs a command.
func Start(c Command) (*Process, error) {
	p := &Process{Name: c.Name, Stdout: NewLog(c.Name, c.Out), Stderr: NewLog(c.Name, c.Err), done: make(chan struct{})}
	if c.CPUs != "" {
		// It becomes the command, so the process id stays.
		c.Path, c.Args = "taskset", append([]string{"--cpu-list", c.CPUs, c.Path}, c.Args...)
	}
	p.cmd = exec.Command(c.Path, c.Args...)
	p.cmd.Dir = c.Dir
	p.cmd.Env = append(c.inheritedEnv(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = p.Stdout, p.Stderr
	p.cmd.SysProcAttr = processAttributes()
	// Should a process leave a descendant that holds its output open, Wait returns all the same.
	p.cmd.WaitDelay = time.Second
	if err := startLocked(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", c.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// inheritedEnv returns the variables of this process that the command gets.
func (c Command) inheritedEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return c.WithoutEnv != "" && strings.HasPrefix(variable, c.WithoutEnv)
	})
}

// spawner is a thread that lives as long as the launcher. The kernel sends the parent-death signal
// when the thread that made the child ends, not when the process does, and Go may end any other
// thread.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func startLocked(start func() error) error {
	result := make(chan error)
	spawner() <- func() { result <- start() }
	return <-result
}

// PID returns the id of the process, which is also the id of its process group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended and its output has been read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Err says how an ended process ended, with the last lines that it wrote; nil if it is running.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s has ended (%s). Its last lines:\n%s", p.Name, how, p.Tail(15))
}

// Tail returns the last n lines of standard error, or of standard output if there is nothing else.
func (p *Process) Tail(n int) string {
	if text := p.Stderr.Tail(n); text != "" {
		return text
	}
	return p.Stdout.Tail(n)
}

// Signal sends a signal to the process's group. An ended process is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if !p.Running() {
		return nil
	}
	if err := syscall.Kill(-p.PID(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot signal %s: %w", p.Name, err)
	}
	return nil
}

// Stop asks the process to end and kills it if it has not ended after grace. It returns when the
// process is gone, and reports whether the process ended without a kill.
func (p *Process) Stop(grace time.Duration) (graceful bool) {
	if p.Signal(syscall.SIGTERM) == nil {
		select {
		case <-p.done:
			return true
		case <-time.After(grace):
		}
	}
	p.Kill()
	return false
}

// Kill ends the process at once and returns when it is gone.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

// AwaitReady waits like Await, and also gives up when the process ends.
func (p *Process) AwaitReady(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := Await(ctx, p.Name+" to be ready", ready)
	if err != nil && !p.Running() {
		return p.Err()
	}
	if err != nil {
		return fmt.Errorf("%w. Its last lines:\n%s", err, p.Tail(15))
	}
	return nil
}
