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

// lookEvery is how often the files are read. A change counts once two looks in a row see the same,
// so that nothing is taken while it is being written.
const lookEvery = time.Second

// patience is after how many looks the log says that another policy set is in force: what another
// replica has put is known here a little later.
const patience = 3

// Sets is where the policy set goes. *policies.Service implements it.
type Sets interface {
	Put(ctx context.Context, c policies.Change) (policies.Outcome, error)
	// TakenBack reports whether the newest version with a document was taken back by its rollout.
	TakenBack(ctx context.Context, document []byte) (bool, error)
	// Active returns the versions in force.
	Active() (policies.Active, <-chan struct{})
}

// Config is what a Watch stands on. All fields but Nodes must be set.
type Config struct {
	// Path is the file or the folder.
	Path string
	Sets Sets
	// Nodes is the share of the nodes, in percent, that get a new version first; 0 means all.
	Nodes int
	// Removes is the share of the policies in force, in percent, that a change of the files may
	// remove; one may always go, and 100 lets all go.
	Removes int
	Log     *slog.Logger
}

// Watch puts into force what the files say, at its start and whenever they change. Make one with
// New. It does not put a set again that an operator has taken back since: the files must change for
// that.
type Watch struct {
	config Config
	// seen is what the last look found, and done is what needs nothing more.
	seen, done string
	// digest is that of the document of done.
	digest string
	// trouble is what the log has last about the files.
	trouble string
	// apart is how many looks in a row found another policy set in force.
	apart   int
	inForce atomic.Bool
	// known is whether a look has found anything out yet.
	known atomic.Bool
	// places are where the files are wrong, without what stands in them.
	places atomic.Pointer[string]
}

// New makes a Watch.
func New(c Config) *Watch { return &Watch{config: c} }

// Run looks at the files again and again until ctx ends. It does not compare times of change,
// because they are coarse, and a mounted ConfigMap changes by a link.
func (w *Watch) Run(ctx context.Context) {
	w.Look(ctx)
	every.Period(ctx, lookEvery, w.Look)
}

// InForce reports whether the newest look found a valid policy set that is in force, for all nodes
// or for those of a rollout. It is safe for concurrent use.
func (w *Watch) InForce() bool { return w.inForce.Load() }

// Refused reports whether what the files say now is not in force. It is safe for concurrent use.
func (w *Watch) Refused() bool { return w.known.Load() && !w.inForce.Load() }

// Look reads the files once. If they are no valid policy set, or the store is away, the last good
// set stays in force, and the log says so once.
func (w *Watch) Look(ctx context.Context) {
	parts, err := Read(w.config.Path)
	if err != nil {
		w.refuse("the policy files cannot be read; the policy set stays as it is", err)
		return
	}
	now := contents(parts)
	settled := now == w.seen
	w.seen = now
	switch {
	case !settled:
		return
	case now == w.done:
		w.compare()
		return
	}
	doc, err := document(w.config.Path, parts, policydoc.Load)
	if err != nil {
		w.refuse("the policy files are refused; the policy set stays as it is", err)
		return
	}
	if err := w.put(ctx, doc); err != nil {
		if _, ok := policydoc.ProblemsOf(err); ok { // Here they have their files and lines.
			_, placed := document(w.config.Path, parts, policydoc.LoadNew)
			err = cmp.Or(placed, err)
		}
		w.refuse("the policy set of the files is not in force yet; it is tried again", err)
		return
	}
	w.done, w.digest = now, policies.Digest(doc.Text)
	w.compare()
}

// contents is one text that differs if any name or text of the files does.
func contents(parts []policydoc.Part) string {
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Name + "\x00" + policies.Digest(p.Text))
	}
	return all.String()
}

// put makes the document the next version, unless it is in force already, or was taken back before
// this Watch began.
func (w *Watch) put(ctx context.Context, doc Document) error {
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
	if err := w.guard(ctx, change); err != nil {
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

// guard is an error if the change would remove more policies than files may: a file that is missing
// by mistake would take a team's limits out of force within seconds.
func (w *Watch) guard(ctx context.Context, change policies.Change) error {
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

// compare notes whether the policy set of the files is still in force. An operator may have taken
// its rollout back, or a replica without files may have put another one.
func (w *Watch) compare() {
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
		w.note(slog.LevelWarn,
			"another policy set than that of the files is in force; change the files to have theirs", nil)
	}
}

// refuse notes that what the files say now is not in force.
func (w *Watch) refuse(text string, err error) {
	places := placesOf(err)
	w.places.Store(&places)
	w.inForce.Store(false)
	w.known.Store(true)
	w.note(slog.LevelError, text, err)
}

// Places are where the files are wrong, like "api.yaml:3, web.yaml:7"; empty if they are right, or
// that is not known. It holds nothing of the files, and is safe for concurrent use.
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
		if p.File == "" { // A file that is no document at all: there is one file.
			p.File = "line"
		}
		place := filepath.Base(p.File) + ":" + strconv.Itoa(p.Line)
		if p.Line > 0 && len(places) < most && !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	return strings.Join(places, ", ")
}

// note logs something about the files, once.
func (w *Watch) note(level slog.Level, text string, err error) {
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
