package lockwait

import (
	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/locks"
)

// graph is who waits for whom, as one state of the locks shows it. It keeps no edges: a lock that
// was given back leaves none behind, so no circle is reported that does not exist. Only a waiter
// with a request here counts. Each request looks once, when it begins: of the waiters in a circle,
// the last one finds all others.
//
// Waiters of flock are not in it, as on a local file system: their owner may be shared by
// processes, of which another one gives the lock back.
type graph struct {
	*kvtx.View
	waiting map[locktable.Owner][]*ticket
}

// waiting returns the waiters by owner. The caller holds mu.
func (q *Queue) waiting() map[locktable.Owner][]*ticket {
	all := map[locktable.Owner][]*ticket{}
	for _, line := range q.of {
		for _, t := range line {
			if t.asking && !t.admitted && !t.want.Flock {
				all[t.want.Owner] = append(all[t.want.Owner], t)
			}
		}
	}
	return all
}

// waitsForItself reports whether the waiter waits, through others, for a lock of its own owner.
func (g *graph) waitsForItself(t *ticket) (bool, error) {
	if t.want.Flock {
		return false, nil
	}
	seen := map[locktable.Owner]bool{}
	next := []*ticket{t}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		have, err := locks.Of(g.View, at.inode, at.want)
		if err != nil {
			return false, err
		}
		for _, l := range have {
			switch {
			case !l.Excludes(at.want) || seen[l.Owner]:
			case l.Owner == t.want.Owner:
				return true, nil
			default:
				seen[l.Owner] = true
				next = append(next, g.waiting[l.Owner]...)
			}
		}
	}
	return false, nil
}
