package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

const (
	maxFile = 1 << 20
	// lookEvery is how long a token may be accepted after its line has gone.
	lookEvery = 2 * time.Second
	// warnBefore and warnEvery: the log warns daily of a token that expires soon.
	warnBefore = 14 * 24 * time.Hour
	warnEvery  = 24 * time.Hour
)

// ReadFile returns a file's text, which must be short.
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

// Watch keeps the tokens of a Ring as a tokens file has them. Make one with NewWatch.
type Watch struct {
	path string
	ring *Ring
	log  *slog.Logger

	text    []byte
	tokens  Tokens
	trouble string
	warned  map[Token]time.Time
}

// NewWatch makes a Watch of the tokens file at path.
func NewWatch(path string, ring *Ring, log *slog.Logger) *Watch {
	return &Watch{path: path, ring: ring, log: log, warned: map[Token]time.Time{}}
}

// Run reads the file again and again until ctx ends. It does not compare times of change, because
// they are coarse, and a mounted secret changes by a link.
func (w *Watch) Run(ctx context.Context, now func() time.Time) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		w.Look(now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Look reads the file once. If it cannot be read, or any line is wrong, the tokens stay as they
// are, and the log says so once.
func (w *Watch) Look(now time.Time) {
	text, err := ReadFile(w.path)
	if err == nil && (w.text == nil || !bytes.Equal(text, w.text)) {
		tokens, problems := ParseFile(text)
		err = errors.Join(problems...)
		if err == nil {
			first := w.text == nil
			w.text, w.tokens = bytes.Clone(text), tokens
			w.ring.Set(tokens)
			w.warned = map[Token]time.Time{}
			if !first {
				w.log.Info("the tokens file has changed and is in force", "file", w.path, "tokens", len(tokens))
			}
		}
	}
	switch {
	case err == nil:
		w.trouble = ""
	case err.Error() != w.trouble:
		w.trouble = err.Error()
		w.log.Error("the tokens file cannot be used; the tokens stay as they were", "file", w.path, "error", w.trouble)
	}
	w.warn(now)
}

// warn logs tokens that expire soon or have expired.
func (w *Watch) warn(now time.Time) {
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
