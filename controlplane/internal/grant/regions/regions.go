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
	// roundEvery is the interval at which a region reads the document and moves shares.
	roundEvery = 10 * quota.Second
	// readEvery is the interval at which a replica reads its region's record; foldEvery is the
	// interval at which it adds its demand to the record.
	readEvery = time.Second
	foldEvery = 2 * time.Second
	// forgetAfter is how long a replica uses the record that it read last. After that no replica
	// uses a share that was lowered.
	forgetAfter = 3 * time.Second
	// lag is the longest delay until a replica uses a lowered share: forgetAfter, and the same time
	// again for a grant under way.
	lag      = 2 * quota.Span(forgetAfter/time.Microsecond)
	patience = 2 * time.Second
)

// Cell is a small value that several writers change.
type Cell interface {
	// Load returns the value, nil if there is none yet, with its revision and the store's own time.
	Load(ctx context.Context) (value []byte, revision uint64, now quota.Instant, err error)
	// Swap stores a value if the revision is still the newest, and reports whether it did.
	Swap(ctx context.Context, revision uint64, value []byte) (bool, error)
}

// Config names this region, and the shares of the regions in a quota that has not moved.
type Config struct {
	Region string
	// Weights are by region, including this region; see Normalise.
	Weights map[string]int64
}

// Normalise scales weights to shares of Whole. The error names a region whose share would be too
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

// Service manages the shares for one replica. Make a Service with New, and Run it. It is safe for
// concurrent use.
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
	reached  time.Time // when the document was last read
	folded   time.Time
	demand   map[string]int64
	trouble  string
}

// New makes a Service. own is the region's cell, shared the cell of all regions; now is a monotonic
// clock.
func New(config Config, own, shared Cell, grace Grace, log *slog.Logger, now func() time.Time) *Service {
	return &Service{
		config: config, own: own, shared: shared, log: log, now: now,
		grace:    func(name string, part Part) quota.Span { return grace(name, part) + lag },
		document: Document{Weights: config.Weights}, demand: map[string]int64{},
	}
}

// Part returns this region's part of a policy. It returns false if the part was not known for too
// long: then the region must not grant.
func (s *Service) Part(name string) (Part, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	weight := s.config.Weights[s.config.Region]
	part := Part{Rate: s.record.shareInUse(name, weight).Using, Burst: weight, Epoch: s.record.Epoch}
	return part, s.record.Round != 0 && s.now().Sub(s.read) < forgetAfter
}

// Want counts tokens that Envoys asked the region for.
func (s *Service) Want(name string, tokens int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.demand[name]; known || len(s.demand) < maxMoved {
		addDemand(s.demand, name, tokens)
	}
}

// Refresh reads the region's present record. It is needed if another replica has granted with a
// newer epoch.
func (s *Service) Refresh(ctx context.Context) error {
	_, _, _, err := s.loadRecord(ctx)
	return err
}

// Nodes returns the number of nodes that would share the whole limits if the nodes of all regions
// were in proportion to the weights.
func (s *Service) Nodes(own int64) int64 {
	weight := s.config.Weights[s.config.Region]
	return (own*Whole + weight - 1) / weight
}

// Run reads, counts and moves shares until ctx ends.
func (s *Service) Run(ctx context.Context) {
	for {
		s.runPass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(readEvery):
		}
	}
}

// runPass makes one pass of Run. After an error it also checks that the document of all regions can
// be read and written again, because the document is not used between two rounds.
func (s *Service) runPass(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.mu.Lock()
	troubled := s.trouble != ""
	s.mu.Unlock()
	err := s.doStep(timed)
	if err == nil && troubled {
		err = s.probeDocument(timed)
	}
	s.noteTrouble(ctx, err)
}

// probeDocument writes the document of all regions without a change.
func (s *Service) probeDocument(ctx context.Context) error {
	document, at, err := s.fetchDocument(ctx)
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

// noteTrouble logs an error once, and once when it is over.
func (s *Service) noteTrouble(ctx context.Context, err error) {
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
		s.log.Warn("cannot move shares between the regions; each region keeps its shares", "error", trouble)
	case trouble == "" && before != "":
		s.log.Info("the regions move their shares again")
	}
}

// doStep reads the record and does the tasks that are due.
func (s *Service) doStep(ctx context.Context) error {
	record, revision, now, err := s.loadRecord(ctx)
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
		addDemand(record.Demand, name, tokens)
	}
	if !due {
		_, err = s.storeRecord(ctx, record, revision)
		return err
	}
	return s.moveShares(ctx, record, revision, int64(now))
}

// takeDemand returns the demand since the last call.
func (s *Service) takeDemand() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := s.demand
	s.demand, s.folded = map[string]int64{}, s.now()
	return wanted
}

// moveShares moves shares. The replica that stores the record first does so for its region; a later
// replica only loses the demand of a few seconds.
func (s *Service) moveShares(ctx context.Context, record Record, revision uint64, now int64) error {
	document, at, err := s.fetchDocument(ctx)
	first := record.Round == 0
	record.Round = now
	region := s.config.Region
	switch {
	case err != nil && first:
		// The shares of other regions are not known, so a region that has lost its record grants
		// nothing.
		return err
	case err != nil:
		_, storeErr := s.storeRecord(ctx, record, revision)
		return errors.Join(storeErr, err)
	case first:
		adoptShares(&record, &document, region)
	}
	// Lower shares in the record first.
	document.addDemand(region, record.Demand)
	record.Demand = nil
	lowerShares(&record, &document, region, now)
	if won, err := s.storeRecord(ctx, record, revision); err != nil || !won {
		return err
	}
	// Then change the document.
	settleShares(&record, &document, region, now, s.grace)
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
	// Use the shares that the document gives.
	record, revision, _, err = s.loadRecord(ctx)
	if err != nil {
		return err
	}
	epoch := record.Epoch
	if takeShares(&record, &document, region); record.Epoch == epoch {
		return nil
	}
	_, err = s.storeRecord(ctx, record, revision)
	return err
}

// loadRecord reads the region's record, and uses it from now on.
func (s *Service) loadRecord(ctx context.Context) (Record, uint64, quota.Instant, error) {
	asked := s.now()
	text, revision, now, err := s.own.Load(ctx)
	if err != nil {
		return Record{}, 0, 0, fmt.Errorf("cannot read the region's shares in its store: %w", err)
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

// storeRecord stores the region's record and uses it, unless another replica was faster.
func (s *Service) storeRecord(ctx context.Context, record Record, revision uint64) (bool, error) {
	text, err := json.Marshal(record)
	if err != nil {
		return false, err
	}
	won, err := s.own.Swap(ctx, revision, text)
	if err != nil {
		return false, fmt.Errorf("cannot write the region's shares to its store: %w", err)
	}
	if won {
		s.mu.Lock()
		s.record = record.clone()
		s.mu.Unlock()
	}
	return won, nil
}

// fetchDocument reads the document of all regions.
func (s *Service) fetchDocument(ctx context.Context) (Document, uint64, error) {
	text, revision, _, err := s.shared.Load(ctx)
	if err != nil {
		return Document{}, 0, fmt.Errorf("cannot read the document of the regions: %w", err)
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
	// Moved has the policies for which this region's share differs from its weight, or is being
	// given away.
	Moved map[string]Share `json:"moved"`
	// Held has the shares of all regions, by policy, if they differ from the weights.
	Held map[string]map[string]int64 `json:"held"`
	// Age is the time since the document was last read, in seconds; negative if it never was.
	Age float64 `json:"document_age_seconds"`
	// Trouble is the reason why shares do not move; empty if they do.
	Trouble string `json:"trouble,omitempty"`
}

// View returns the state of the regions as this replica knows it.
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
