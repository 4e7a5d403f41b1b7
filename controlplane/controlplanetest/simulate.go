package controlplanetest

import (
	"io"

	"github.com/weir-proxy/weir/controlplane/internal/offline/simulate"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// Simulate replays an access log under a policy set in JSON or YAML, as `weir simulate` does, with
// the given number of nodes. Windows begin when they do under the snapshots that Put returns. It
// returns how many requests are refused, and how many policies in shadow and candidates would
// refuse.
func Simulate(document []byte, log io.Reader, nodes int64) (refused, tried int64, err error) {
	set, err := policydoc.Load(document, policydoc.Sniff(document))
	if err != nil {
		return 0, 0, err
	}
	s, err := simulate.New(simulate.Options{Set: set, Nodes: nodes, Secret: secret})
	if err != nil {
		return 0, 0, err
	}
	if err := s.Read("log", log); err != nil {
		return 0, 0, err
	}
	r := s.Report()
	for _, p := range r.Result.Policies {
		tried += p.Shadow
	}
	return r.Result.Refused, tried, nil
}
