package regions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// roundEvery is how often a region looks at the document and moves shares.
	roundEvery = 10 * quota.Second
	// readEvery is how often a replica reads what its region uses, foldEvery how often it adds what
	// it was asked for.
	readEvery = time.Second
	foldEvery = 2 * time.Second
	// forgetAfter is how long a replica uses what it read last. After it no replica uses a share
	// that was lowered.
	forgetAfter = 3 * time.Second
	// lag is how far a replica may be behind with a lowered share: forgetAfter, and as much again
	// for a grant under way.
	lag      = 2 * quota.Span(forgetAfter/time.Microsecond)
	patience = 2 * time.Second
)

// Cell is a small value that several writers change.
type Cell interface {
	// Load returns the value, nil if there is none yet, with its revision and the store's own time.
	Load(ctx context.Context) (value []byte, revision uint64, now quota.Instant, err error)
	// Swap stores a value if the revision still is the newest, and reports whether it did.
	Swap(ctx context.Context, revision uint64, value []byte) (bool, error)
}

// Config says which region this is, and how the regions split a quota that has not moved.
type Config struct {
	Region string
	// Weights are by region, including Region's own; see Normalise.
	Weights map[string]int64
}

// Normalise scales weights to shares of Whole. The error names the region whose share would be too
// small.
func Normalise(weights map[string]int64) (map[string]int64, error) {
	var sum int64
	for _, w := range weights {
		sum += w
	}
	shares := make(map[string]int64, len(weights))
	for name, w := range weights {
		shares[name] = Whole * w / max(sum, 1)
		if shares[name] < leastShare {
			return nil, fmt.Errorf("region %s has less than a hundredth of all weights", name)
		}
	}
	return shares, nil
}

// Service is the part of one replica. Make one with New, and Run it. It is safe for concurrent use.
type Service struct {
	config      Config
	own, shared Cell
	grace       Grace
	log         *slog.Logger
	now         func() time.Time

	mu       sync.Mutex
	record   Record
	document Document
	read     time.Time // when record was last read
	reached  time.Time // when the document was last reached
	folded   time.Time
	demand   map[string]int64
	trouble  string
}

// New makes a Service. Own is the region's cell, shared the one of all regions; now is a monotonic
// clock.
func New(config Config, own, shared Cell, grace Grace, log *slog.Logger, now func() time.Time) *Service {
	return &Service{
		config: config, own: own, shared: shared, log: log, now: now,
		grace:    func(name string, part Part) quota.Span { return grace(name, part) + lag },
		document: Document{Weights: config.Weights}, demand: map[string]int64{},
	}
}

// Part is this region's part of a policy. It reports false if the part has been unknown for too
// long; then the region must not grant.
func (s *Service) Part(name string) (Part, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	weight := s.config.Weights[s.config.Region]
	part := Part{Rate: s.record.using(name, weight).Using, Burst: weight, Epoch: s.record.Epoch}
	return part, s.record.Round != 0 && s.now().Sub(s.read) < forgetAfter
}

// Want notes tokens that Envoys asked the region for.
func (s *Service) Want(name string, tokens int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.demand[name]; known || len(s.demand) < maxMoved {
		count(s.demand, name, tokens)
	}
}

// Refresh reads what the region uses now. It is for the case that another replica granted under a
// newer epoch.
func (s *Service) Refresh(ctx context.Context) error {
	_, _, _, err := s.load(ctx)
	return err
}

// Nodes is how many nodes would share the whole limits if all regions had as many as their weights
// say.
func (s *Service) Nodes(own int64) int64 {
	weight := s.config.Weights[s.config.Region]
	return (own*Whole + weight - 1) / weight
}

// Run reads, counts and moves until ctx ends.
func (s *Service) Run(ctx context.Context) {
	for {
		s.pass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(readEvery):
		}
	}
}

// pass is one pass of Run. Trouble is over only once the document of all regions can be read and
// written again; between two rounds it is not used.
func (s *Service) pass(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.mu.Lock()
	troubled := s.trouble != ""
	s.mu.Unlock()
	err := s.step(timed)
	if err == nil && troubled {
		err = s.probe(timed)
	}
	s.note(ctx, err)
}

// probe writes the document of all regions as it is.
func (s *Service) probe(ctx context.Context) error {
	document, at, err := s.fetch(ctx)
	if err != nil || at == 0 {
		return err
	}
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	_, err = s.shared.Swap(ctx, at, text)
	return err
}

// note logs a trouble once, and once when it is over.
func (s *Service) note(ctx context.Context, err error) {
	trouble := ""
	if err != nil && ctx.Err() == nil {
		trouble = err.Error()
	}
	s.mu.Lock()
	before := s.trouble
	s.trouble = trouble
	s.mu.Unlock()
	switch {
	case trouble != "" && before == "":
		s.log.Warn("the regions cannot move their shares; each keeps what it has", "error", trouble)
	case trouble == "" && before != "":
		s.log.Info("the regions move their shares again")
	}
}

// step reads the record and does what is due.
func (s *Service) step(ctx context.Context) error {
	record, revision, now, err := s.load(ctx)
	if err != nil {
		return err
	}
	due := record.Round == 0 || int64(now)-record.Round >= int64(roundEvery)
	if !due && s.now().Sub(s.folded) < foldEvery {
		return nil
	}
	wanted := s.takeDemand()
	if len(wanted) == 0 && !due {
		return nil
	}
	if record.Demand == nil {
		record.Demand = map[string]int64{}
	}
	for name, tokens := range wanted {
		count(record.Demand, name, tokens)
	}
	if !due {
		_, err = s.store(ctx, record, revision)
		return err
	}
	return s.round(ctx, record, revision, int64(now))
}

// takeDemand returns what was wanted since it was last called.
func (s *Service) takeDemand() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := s.demand
	s.demand, s.folded = map[string]int64{}, s.now()
	return wanted
}

// round moves shares. The replica that stores the record first does it for its region; a later one
// only loses the demand of a few seconds.
func (s *Service) round(ctx context.Context, record Record, revision uint64, now int64) error {
	document, at, err := s.fetch(ctx)
	first := record.Round == 0
	record.Round = now
	region := s.config.Region
	switch {
	case err != nil && first:
		// What others hold is not known yet, so a region that has lost its record grants nothing.
		return err
	case err != nil:
		_, storeErr := s.store(ctx, record, revision)
		return errors.Join(storeErr, err)
	case first:
		adopt(&record, &document, region)
	}
	document.wanted(region, record.Demand)
	record.Demand = nil
	give(&record, &document, region, now)
	if won, err := s.store(ctx, record, revision); err != nil || !won {
		return err
	}
	settle(&record, &document, region, now, s.grace)
	s.mu.Lock()
	s.document, s.reached = document, s.now() // It does not change any more.
	s.mu.Unlock()
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	if won, err := s.shared.Swap(ctx, at, text); err != nil || !won {
		return err // Another region was faster: the next round tries again.
	}
	record, revision, _, err = s.load(ctx)
	if err != nil {
		return err
	}
	epoch := record.Epoch
	if take(&record, &document, region); record.Epoch == epoch {
		return nil
	}
	_, err = s.store(ctx, record, revision)
	return err
}

// load reads the region's record and uses it from now on.
func (s *Service) load(ctx context.Context) (Record, uint64, quota.Instant, error) {
	asked := s.now()
	text, revision, now, err := s.own.Load(ctx)
	if err != nil {
		return Record{}, 0, 0, fmt.Errorf("the region's store does not tell its shares: %w", err)
	}
	var record Record
	if text != nil {
		if err := json.Unmarshal(text, &record); err != nil {
			return Record{}, 0, 0, fmt.Errorf("the region's shares are damaged: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, s.read = record.clone(), asked
	return record, revision, now, nil
}

// store stores the region's record and uses it, if no other replica was faster.
func (s *Service) store(ctx context.Context, record Record, revision uint64) (bool, error) {
	text, err := json.Marshal(record)
	if err != nil {
		return false, err
	}
	won, err := s.own.Swap(ctx, revision, text)
	if err != nil {
		return false, fmt.Errorf("the region's store does not take its shares: %w", err)
	}
	if won {
		s.mu.Lock()
		s.record = record.clone()
		s.mu.Unlock()
	}
	return won, nil
}

// fetch reads the document of all regions.
func (s *Service) fetch(ctx context.Context) (Document, uint64, error) {
	text, revision, _, err := s.shared.Load(ctx)
	if err != nil {
		return Document{}, 0, fmt.Errorf("the document of the regions cannot be reached: %w", err)
	}
	document := Document{Weights: s.config.Weights}
	if text != nil {
		document = Document{}
		if err := json.Unmarshal(text, &document); err != nil {
			return Document{}, 0, fmt.Errorf("the document of the regions is damaged: %w", err)
		}
	}
	if !maps.Equal(document.Weights, s.config.Weights) {
		return Document{}, 0, fmt.Errorf("the regions agreed on the weights %v and this one has %v: give all the same",
			document.Weights, s.config.Weights)
	}
	return document, revision, nil
}

func (r Record) clone() Record {
	r.Shares, r.Demand = maps.Clone(r.Shares), nil
	return r
}

// View is the state of the regions for operators.
type View struct {
	Region  string           `json:"region"`
	Weights map[string]int64 `json:"weights"`
	// Moved are the policies for which this region's share differs from its weight, or is being
	// given away.
	Moved map[string]Share `json:"moved"`
	// Held are the shares of all regions, by policy, that differ from the weights.
	Held map[string]map[string]int64 `json:"held"`
	// Age is how long ago the document was reached, in seconds; negative if never.
	Age float64 `json:"document_age_seconds"`
	// Trouble is why shares do not move, empty if they do.
	Trouble string `json:"trouble,omitempty"`
}

// View returns what this replica knows.
func (s *Service) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := View{
		Region: s.config.Region, Weights: s.config.Weights, Moved: maps.Clone(s.record.Shares),
		Age: -1, Trouble: s.trouble,
	}
	if !s.reached.IsZero() {
		v.Age = s.now().Sub(s.reached).Seconds()
	}
	v.Held = make(map[string]map[string]int64, len(s.document.Held))
	for name, shares := range s.document.Held {
		v.Held[name] = maps.Clone(shares)
	}
	return v
}
