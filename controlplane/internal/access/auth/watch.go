package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
)

const (
	maxFile = 1 << 20
	// lookEvery is the longest time for which a token stays accepted after its line was removed.
	lookEvery = 2 * time.Second
	// warnBefore is how long before the end the log begins to warn about a token that expires, and
	// warnEvery how often it repeats the warning.
	warnBefore = 14 * 24 * time.Hour
	warnEvery  = 24 * time.Hour
)

// ReadFile returns the text of a file, which must be short.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return b, err
}

// Watch copies a tokens file into a Ring whenever it changes. Make a Watch with NewWatch.
type Watch struct {
	path string
	ring *Ring
	log  *slog.Logger

	// text is the text in force, tokens are its tokens, and mistakes is its error. lastRead is the
	// text that was read last.
	text, lastRead []byte
	tokens         Tokens
	mistakes       error
	// trouble is the last message in the log about the file. short is the same without the content
	// of the file.
	trouble string
	short   atomic.Pointer[string]
	warned  map[Token]time.Time
}

// NewWatch makes a Watch for the tokens file at path.
func NewWatch(path string, ring *Ring, log *slog.Logger) *Watch {
	return &Watch{path: path, ring: ring, log: log, warned: map[Token]time.Time{}}
}

// Run reads the file periodically until ctx ends. It does not rely on modification times, because
// they are coarse, and because a mounted secret changes through a link.
func (w *Watch) Run(ctx context.Context, now func() time.Time) {
	w.Look(now())
	every.Period(ctx, lookEvery, func(context.Context) { w.Look(now()) })
}

// Look reads the file once. An invalid line accepts no token, and a token without a line is refused
// from now on, so an error in one line does not keep another token valid. If the file cannot be
// read or is empty, the tokens do not change. A file with an error takes effect only after two
// looks in a row have seen it, because it may just be being written.
func (w *Watch) Look(now time.Time) {
	text, err := w.readFile()
	if err == nil {
		err = w.applyTokens(text)
	}
	w.noteError(err)
	w.warnOfExpiry(now)
}

// readFile returns the text of the file. It refuses a named pipe, which could block its reader for
// ever.
func (w *Watch) readFile() ([]byte, error) {
	if info, err := os.Stat(w.path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return nil, fmt.Errorf("%s is a named pipe, and not a file that can be read again", w.path)
	}
	return ReadFile(w.path)
}

// applyTokens puts the tokens of a text into force, and returns the mistakes in the text. It does
// not if the text is empty, nor when it sees a text with mistakes for the first time, except at the
// start.
func (w *Watch) applyTokens(text []byte) error {
	if w.text != nil && bytes.Equal(text, w.text) {
		return w.mistakes
	}
	tokens, problems := ParseFile(text)
	mistakes := errors.Join(problems...)
	seenBefore := bytes.Equal(text, w.lastRead)
	w.lastRead = bytes.Clone(text)
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return mistakes
	case mistakes != nil && !seenBefore && w.text != nil: // The file may just be being written.
		return mistakes
	}
	first := w.text == nil
	w.text, w.tokens, w.mistakes = bytes.Clone(text), tokens, mistakes
	w.ring.Set(tokens)
	w.warned = map[Token]time.Time{}
	if !first {
		w.log.Info("the tokens file has changed and is in force", "file", w.path, "tokens", len(tokens))
	}
	return mistakes
}

// noteError logs the error of the file once, and stores it for Trouble.
func (w *Watch) noteError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.trouble {
		w.log.Error("the tokens file is wrong: a wrong line accepts no token; if there is no line, or no file, "+
			"the tokens stay as they were", "file", w.path, "error", text)
	}
	w.trouble = text
	short := summarizeError(err)
	w.short.Store(&short)
}

// Trouble says which lines of the file are invalid, or that it cannot be read; empty if it is
// valid. It contains nothing of the file. It is safe for concurrent use.
func (w *Watch) Trouble() string {
	if text := w.short.Load(); text != nil {
		return *text
	}
	return ""
}

// summarizeError returns the error of the file without anything of its content.
func summarizeError(err error) string {
	if err == nil {
		return ""
	}
	var lines []string
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range all.Unwrap() {
			var line *LineError
			if errors.As(one, &line) && len(lines) < 10 {
				lines = append(lines, strconv.Itoa(line.Line))
			}
		}
	}
	if len(lines) == 0 {
		return "not readable, empty or too long, so the tokens stay as they were: the log says why"
	}
	return "wrong in line " + strings.Join(lines, ", ") + ", which accepts no token: the log says why"
}

// warnOfExpiry logs tokens that expire soon or have expired.
func (w *Watch) warnOfExpiry(now time.Time) {
	for _, t := range w.tokens {
		if t.Expires.IsZero() || t.Expires.Sub(now) > warnBefore || now.Sub(w.warned[t]) < warnEvery {
			continue
		}
		w.warned[t] = now
		text := "a token expires soon: make another with weir token new"
		if t.Expired(now) {
			text = "a token has expired: remove its line from the tokens file"
		}
		w.log.Warn(text, "name", t.Name, "role", string(t.Role), "expires", t.Expires.UTC().Format(time.RFC3339))
	}
}
