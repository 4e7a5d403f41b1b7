package main

import (
	"fmt"
	"slices"
	"strings"
)

// scene is a kind of load, with the service behind the filter.
type scene string

const (
	// direct: Envoy answers by itself and nearly all contestants see one key, so that the cost of a
	// filter stands out.
	direct scene = "direct"
	// proxied: Envoy asks a service, the keys are a thousand with Zipf's distribution, and latency
	// is measured too.
	proxied scene = "proxied"
	// cold: each of a hundred thousand keys comes once in a while.
	cold scene = "cold"
	// mixed: a few keys exceed their limit, and most come once in a while.
	mixed scene = "mixed"
	// browser: requests have as many headers as a browser sends.
	browser scene = "browser"
	// curve: the cold keys at one constant rate after the other.
	curve scene = "curve"
	// idle: there are no requests.
	idle scene = "idle"
)

// scenes returns all scenes, in the order in which a round measures them.
func scenes() []scene { return []scene{direct, proxied, cold, mixed, browser, curve, idle} }

const (
	// noLimit is far more requests a minute than any load here sends; usualLimit and tightLimit are
	// limits as operators set them.
	noLimit    = 60_000_000
	usualLimit = 1000
	tightLimit = 100
)

// stage has the common settings of a scene's contestants.
type stage struct {
	title string
	// quota is each key's in a minute.
	quota   int
	traffic traffic
	// perTurn is how many slices a contestant has in a turn of the closed loop; 0 is a scene
	// without a closed loop. Behind a service it warms up again before: while the others had their
	// turn the leases of a thousand keys have ended.
	perTurn int
	// settles is how many more times the plan's time a contestant warms up.
	settles int
	// opens says that latency is measured in an open loop.
	opens bool
	// refuses says that a part of the answers is 429 where there is a limit.
	refuses bool
	workers int
}

var stages = map[scene]stage{
	direct: {title: "Envoy answers by itself, one key", quota: noLimit, traffic: oneKey, perTurn: 1, workers: 1},
	proxied: {
		title: "a service behind Envoy, 1000 keys",
		quota: noLimit, traffic: busyKeys, perTurn: 4, settles: 1, opens: true, workers: 1,
	},
	cold: {
		title: "100 000 cold keys, 1000 a minute each",
		quota: usualLimit, traffic: coldKeys, perTurn: 4, opens: true, workers: 1,
	},
	mixed: {
		title: "100 000 keys, 100 a minute each, a tenth refused",
		quota: tightLimit, traffic: mixedKeys, perTurn: 4, refuses: true, workers: 1,
	},
	browser: {
		title: "headers of a browser, 10 000 keys, 1000 a minute each",
		quota: usualLimit, traffic: browserKeys, perTurn: 4, workers: 1,
	},
	curve: {
		title: "100 000 cold keys, 1000 a minute each, at a constant rate",
		quota: usualLimit, traffic: coldKeys, workers: 1,
	},
	idle: {title: "no requests, two workers", quota: usualLimit, traffic: oneKey, workers: 2},
}

// chosenScenes returns the scenes in a list with commas; all, if the list is empty.
func chosenScenes(list string) ([]scene, error) {
	if list == "" {
		return scenes(), nil
	}
	var chosen []scene
	for name := range strings.SplitSeq(list, ",") {
		s := scene(strings.TrimSpace(name))
		if !slices.Contains(scenes(), s) {
			return nil, fmt.Errorf("-scene %s: there are %v", s, scenes())
		}
		chosen = append(chosen, s)
	}
	return chosen, nil
}
