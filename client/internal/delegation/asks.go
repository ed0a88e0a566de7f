package delegation

import (
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

// asks are the directories for which the desk asks, or may ask.
type asks struct {
	of      map[uint64]*ask
	running int       // requests for directories
	forNew  int       // those of them that are for new directories
	swept   time.Time // when the client last removed an older entry of a delegated directory
	emptied time.Time // when that was a directory
}

// ask is what the desk remembers of a directory that is not delegated, or was recalled.
type ask struct {
	changes int // since a time
	since   time.Time
	asking  bool
	// recalled says that the service recalled the directory before the desk had its answer.
	recalled bool
	from     time.Time // the desk does not ask before
	pause    time.Duration
	madeIn   uint64 // parent of a directory for which the desk asked when it was new
	hidden   bool   // it is hidden until the answer
}

// at returns what the desk remembers of a directory.
func (s *asks) at(id uint64) *ask {
	a := s.of[id]
	if a == nil {
		if len(s.of) >= maxAsks {
			for id, a := range s.of {
				if !a.asking {
					delete(s.of, id)
				}
			}
		}
		a = &ask{}
		s.of[id] = a
	}
	return a
}

// changesOf returns the directories in which the service changed names for a request.
func changesOf(req *wire.MetaRequest) []uint64 {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Create:
		return []uint64{op.Create.GetParent()}
	case *wire.MetaRequest_Remove:
		return []uint64{op.Remove.GetParent()}
	case *wire.MetaRequest_Rename:
		if op.Rename.GetNewParent() != op.Rename.GetParent() {
			return []uint64{op.Rename.GetParent(), op.Rename.GetNewParent()}
		}
		return []uint64{op.Rename.GetParent()}
	}
	return nil
}

// enough counts a change, and reports whether the desk asks after that many.
func (a *ask) enough(now time.Time) bool {
	if now.Sub(a.since) > askWindow {
		a.changes, a.since = 0, now
	}
	a.changes++
	return a.changes >= askAfter
}

// begin begins a request for a directory.
func (s *asks) begin(a *ask) {
	a.asking = true
	s.running++
}

// beginNew begins a request for a directory that was made in another a moment ago.
func (s *asks) beginNew(a *ask, parent uint64) {
	a.hidden, a.madeIn = true, parent
	s.forNew++
	s.begin(a)
}

// end ends a request. It reports whether the directory was recalled, or new, meanwhile. A refusal of a new one
// stands against others in its parent.
func (s *asks) end(a *ask, r *wire.DelegateReply, now time.Time) (recalled, isNew bool) {
	recalled, isNew = a.recalled, a.hidden
	if !r.GetDelegated() {
		a.from, s.swept, s.emptied = now.Add(firstPause), time.Time{}, time.Time{}
		if isNew && r != nil {
			if parent := s.at(a.madeIn); parent.from.Before(a.from) {
				parent.from = a.from
			}
		}
	}
	a.asking, a.recalled, a.hidden = false, false, false // from here on at may forget it
	s.running--
	if isNew {
		s.forNew--
	}
	return recalled, isNew
}

// recalled notes the recall of a directory.
func (s *asks) recalled(id uint64, now time.Time) {
	a := s.at(id)
	a.recalled = a.asking
	a.pauseFor(now)
	if a.madeIn != 0 { // others work in what this client makes there
		s.at(a.madeIn).pauseFor(now)
	}
}

// pauseFor begins the next pause.
func (a *ask) pauseFor(now time.Time) {
	if now.Sub(a.from) > lastPause {
		a.pause = 0
	}
	a.pause = min(max(2*a.pause, firstPause), lastPause)
	a.from = now.Add(a.pause)
}

// removed notes the removal of an older entry.
func (s *asks) removed(directory bool, now time.Time) {
	s.swept = now
	if directory {
		s.emptied = now
	}
}
