package linear

import "github.com/anishathalye/porcupine"

// Ask is a node's request to the control plane: for tokens of a bucket, or of several for one
// request, which needs all or none of them. Buckets that are asked for together are of one group.
type Ask struct {
	Group int
	Parts []Part
}

// Part is the part of a request for one bucket, 0 or 1, of the group: the cost of a number of
// waiting requests, and tokens to keep beyond it.
type Part struct {
	Bucket        int
	Waiting, Cost int64
	Keep, Nodes   int64
}

// Granted is the answer about one bucket.
type Granted struct{ Waiting, Keep, Level int64 }

// Ledgers returns the model of the control plane's buckets while nothing is earned: granted tokens
// are gone. An operation's input is an Ask, its output a []Granted as long as its parts, or nil if
// the answer was lost. With a single part the waiting requests get the tokens that are left. With
// two parts, both must have enough for all of their waiting requests, or no request gets any.
func Ledgers(burst int64) porcupine.Model {
	return porcupine.Model{
		Partition: partition(func(input any) int { return input.(Ask).Group }),
		Init:      func() any { return levels{burst, burst} },
		Step: func(state, input, output any) (bool, any) {
			after, answers := grant(state.(levels), input.(Ask))
			if output == nil {
				return true, after
			}
			for i, g := range output.([]Granted) {
				if g != answers[i] {
					return false, state
				}
			}
			return true, after
		},
	}
}

// levels are the tokens left in the buckets of a group.
type levels [2]int64

func grant(before levels, ask Ask) (after levels, answers []Granted) {
	after = before
	enough := true
	for _, p := range ask.Parts {
		enough = enough && before[p.Bucket]/p.Cost >= p.Waiting
	}
	for _, p := range ask.Parts {
		left := &after[p.Bucket]
		var g Granted
		if enough || len(ask.Parts) == 1 {
			g.Waiting = min(p.Waiting, *left/p.Cost)
			*left -= g.Waiting * p.Cost
			if g.Waiting == p.Waiting {
				g.Keep = kept(p, *left)
			}
			*left -= g.Keep
		}
		g.Level = *left
		answers = append(answers, g)
	}
	return after, answers
}

// kept returns the tokens that a node may keep while nothing is earned: the tokens that it wants,
// up to a quarter of the bucket, rounded up. One of several nodes may keep up to an eighth of its
// share. If they are too few for a request, it returns 0.
func kept(p Part, left int64) int64 {
	share := (left + 3) / 4
	if p.Nodes > 1 {
		share = left / (8 * p.Nodes)
	}
	if share = min(p.Keep, share); share < p.Cost {
		return 0
	}
	return share
}
