package policyfiles

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// lookEvery is the interval at which the files are read. A change counts once two reads in a row
// are equal, so that a file is not used while it is being written.
const lookEvery = time.Second

// patience is the number of looks after which the log reports another policy set in force: a
// version from another replica is known here a little later.
const patience = 3

// Sets accepts the policy set. *policies.Service implements it.
type Sets interface {
	Put(ctx context.Context, c policies.Change) (policies.Outcome, error)
	// TakenBack reports whether the newest version with a document was taken back by its rollout.
	TakenBack(ctx context.Context, document []byte) (bool, error)
	// Active returns the versions in force.
	Active() (policies.Active, <-chan struct{})
}

// Config configures a Watch. All fields but Nodes are required.
type Config struct {
	// Path is the file or the folder.
	Path string
	Sets Sets
	// Nodes is the share of the nodes that get a new version first, in percent; 0 means all.
	Nodes int
	// Removes is the share of the policies in force that a change of the files may remove, in
	// percent; one policy may always be removed, and 100 allows all.
	Removes int
	Log     *slog.Logger
}

// Watch puts the policy set of the files into force, at its start and after each change. Make one
// with New. If an operator has taken a set back since, Watch does not put it again until the files
// change.
type Watch struct {
	config Config
	// seen is the content at the last look; done is the content that needs no further action.
	seen, done string
	// digest is the digest of the document of done.
	digest string
	// trouble is the last log message about the files.
	trouble string
	// apart is the number of looks in a row that found another policy set in force.
	apart   int
	inForce atomic.Bool
	// known is true once a look had a result.
	known atomic.Bool
	// places has the positions of the mistakes in the files, without text from them.
	places atomic.Pointer[string]
}

// New makes a Watch.
func New(c Config) *Watch { return &Watch{config: c} }

// Run looks at the files repeatedly until ctx ends. It does not compare modification times, because
// they are coarse, and a mounted ConfigMap changes by a link.
func (w *Watch) Run(ctx context.Context) {
	w.Look(ctx)
	every.Period(ctx, lookEvery, w.Look)
}

// InForce reports whether the newest look found a valid policy set that is in force, for all nodes
// or for the nodes of a rollout. It is safe for concurrent use.
func (w *Watch) InForce() bool { return w.inForce.Load() }

// Refused reports whether the present content of the files is not in force. It is safe for
// concurrent use.
func (w *Watch) Refused() bool { return w.known.Load() && !w.inForce.Load() }

// Look reads the files once. If they are not a valid policy set, or the store is away, the last
// good set stays in force, and this is logged once.
func (w *Watch) Look(ctx context.Context) {
	parts, err := Read(w.config.Path)
	if err != nil {
		w.noteRefusal("the policy files cannot be read; the policy set stays as it is", err)
		return
	}
	// Wait until the content is the same in two looks.
	now := contentsOf(parts)
	settled := now == w.seen
	w.seen = now
	switch {
	case !settled:
		return
	case now == w.done:
		w.checkInForce()
		return
	}
	// Check the document, then put it into force.
	doc, err := joinParts(w.config.Path, parts, policydoc.Load)
	if err != nil {
		w.noteRefusal("the policy files are refused; the policy set stays as it is", err)
		return
	}
	if err := w.putDocument(ctx, doc); err != nil {
		if _, ok := policydoc.ProblemsOf(err); ok { // These problems have their files and lines.
			_, placed := joinParts(w.config.Path, parts, policydoc.LoadNew)
			err = cmp.Or(placed, err)
		}
		w.noteRefusal("the policy set of the files is not in force yet; it is tried again", err)
		return
	}
	w.done, w.digest = now, policies.Digest(doc.Text)
	w.checkInForce()
}

// contentsOf returns a text that differs if the name or the text of a file differs.
func contentsOf(parts []policydoc.Part) string {
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Name + "\x00" + policies.Digest(p.Text))
	}
	return all.String()
}

// putDocument makes the document the next version, unless it is in force, or was taken back before
// this Watch began.
func (w *Watch) putDocument(ctx context.Context, doc Document) error {
	if w.done == "" {
		back, err := w.config.Sets.TakenBack(ctx, doc.Text)
		if back || err != nil {
			return err
		}
	}
	change := policies.Change{
		Any: true, Document: doc.Text, Format: doc.Format, FromFiles: true, Nodes: w.config.Nodes,
		Entry: audit.Entry{By: w.config.Path, Action: "policyset.put", Resource: "policyset"},
	}
	if err := w.checkRemovals(ctx, change); err != nil {
		return err
	}
	out, err := w.config.Sets.Put(ctx, change)
	if err == nil && !out.Unchanged {
		w.trouble = ""
		w.config.Log.Info("the policy set of the files is a new version", "path", w.config.Path,
			"version", out.Version, "summary", out.Summary)
	}
	return err
}

// checkRemovals returns an error if the change would remove more policies than allowed: a file that
// is missing by mistake would remove a team's limits within seconds.
func (w *Watch) checkRemovals(ctx context.Context, change policies.Change) error {
	active, _ := w.config.Sets.Active()
	if active.Current == nil || w.config.Removes == 100 {
		return nil
	}
	change.DryRun = true
	tried, err := w.config.Sets.Put(ctx, change)
	if err != nil {
		return err
	}
	gone, all := tried.Diff.Removed, len(active.Current.Set.Policies)
	if len(gone) <= 1 || len(gone)*100 <= all*w.config.Removes {
		return nil
	}
	const named = 5
	more := ""
	if len(gone) > named {
		more = fmt.Sprintf(" and %d more", len(gone)-named)
	}
	return fmt.Errorf("they would remove %d of %d policies (%s%s), which is more than --policyset-removes %d%%; "+
		"mend the files, take the policies out in several steps, or start with a larger share if that is meant",
		len(gone), all, strings.Join(gone[:min(named, len(gone))], ", "), more, w.config.Removes)
}

// checkInForce checks that the policy set of the files is still in force. An operator may have
// taken its rollout back, or a replica without files may have put another set.
func (w *Watch) checkInForce() {
	active, _ := w.config.Sets.Active()
	now := active.Current != nil && active.Current.Version.Digest == w.digest ||
		active.Draft != nil && active.Draft.Version.Digest == w.digest
	w.inForce.Store(now)
	w.known.Store(true)
	if now {
		if w.trouble != "" {
			w.config.Log.Info("the policy set of the files is in force again", "path", w.config.Path)
		}
		w.apart, w.trouble = 0, ""
		return
	}
	w.apart++
	if w.apart == patience {
		w.logOnce(slog.LevelWarn,
			"the policy set in force is not the policy set of the files; change the files to put them into force", nil)
	}
}

// noteRefusal records that the present content of the files is not in force.
func (w *Watch) noteRefusal(text string, err error) {
	places := placesOf(err)
	w.places.Store(&places)
	w.inForce.Store(false)
	w.known.Store(true)
	w.logOnce(slog.LevelError, text, err)
}

// Places returns the positions of the mistakes in the files, like "api.yaml:3, web.yaml:7"; empty
// if there are none, or if they are not known. It contains no text of the files, and is safe for
// concurrent use.
func (w *Watch) Places() string {
	if places := w.places.Load(); places != nil && w.Refused() {
		return *places
	}
	return ""
}

func placesOf(err error) string {
	const most = 10
	problems, _ := policydoc.ProblemsOf(err)
	var places []string
	for _, p := range problems {
		if p.File == "" { // A file that is not a document at all: there is only one file.
			p.File = "line"
		}
		place := filepath.Base(p.File) + ":" + strconv.Itoa(p.Line)
		if p.Line > 0 && len(places) < most && !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	return strings.Join(places, ", ")
}

// logOnce logs a message about the files, once.
func (w *Watch) logOnce(level slog.Level, text string, err error) {
	if _, detail, _ := errs.CodeOf(err); detail != "" {
		text += ": " + detail
	} else if err != nil {
		text += ": " + err.Error()
	}
	if text != w.trouble {
		w.trouble = text
		w.config.Log.Log(context.Background(), level, text, "path", w.config.Path)
	}
}
