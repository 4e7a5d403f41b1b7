package linear

import (
	"github.com/anishathalye/porcupine"
)

// Ask is what a node asks of the centre: tokens of some buckets, all or none of them for a group of several.
type Ask struct {
	Parts []Part
}

// Part is what is asked of one bucket: the cost of a number of waiting requests, and tokens to keep beyond it.
type Part struct {
	Bucket        int
	Waiting, Cost int64
	Keep, Nodes   int64
}

// Granted is the answer about one bucket.
type Granted struct{ Waiting, Keep, Level int64 }

// Ledgers is the model of the centre's buckets while nothing is earned: what is granted is gone. An operation's input is an Ask, its
// output a []Granted as long as its parts, or nil if the answer was lost. Of a single part the waiting requests get what there is;
// of several, each must have enough for all of its waiting requests, or nobody gets anything.
func Ledgers(buckets int, burst int64) porcupine.Model {
	const most = 4
	if buckets > most {
		panic("linear: too many buckets for one model")
	}
	return porcupine.Model{
		Init: func() any {
			var levels [most]int64
			for i := range buckets {
				levels[i] = burst
			}
			return levels
		},
		Step: func(state, input, output any) (bool, any) {
			levels, answers := grant(state.([most]int64), input.(Ask))
			if output == nil {
				return true, levels
			}
			for i, g := range output.([]Granted) {
				if g != answers[i] {
					return false, state
				}
			}
			return true, levels
		},
	}
}

func grant(levels [4]int64, ask Ask) (after [4]int64, answers []Granted) {
	enough := true
	for _, p := range ask.Parts {
		enough = enough && levels[p.Bucket]/p.Cost >= p.Waiting
	}
	for _, p := range ask.Parts {
		left := &levels[p.Bucket]
		var g Granted
		if enough || len(ask.Parts) == 1 {
			g.Waiting = min(p.Waiting, *left/p.Cost)
			*left -= g.Waiting * p.Cost
			g.Keep = kept(p, *left)
			*left -= g.Keep
		}
		g.Level = *left
		answers = append(answers, g)
	}
	return levels, answers
}

// kept is what a node may keep: what it wants, unless all nodes that do as much would empty the bucket, and then half its share,
// rounded up.
func kept(p Part, left int64) int64 {
	if p.Keep*p.Nodes <= left {
		return p.Keep
	}
	share := left / (2 * p.Nodes)
	if share*2*p.Nodes < left {
		share++
	}
	return min(p.Keep, share, left)
}
