package session

// eventLog records which inodes changed recently.
type eventLog struct {
	next  uint64 // number of the next event
	floor uint64 // earlier events are forgotten
	ring  [4096]uint64
}

func (e *eventLog) add(inode uint64) {
	e.ring[e.next%uint64(len(e.ring))] = inode
	e.next++
	if e.next-e.floor > uint64(len(e.ring)) {
		e.floor = e.next - uint64(len(e.ring))
	}
}

// all records a change of everything.
func (e *eventLog) all() { e.next++; e.floor = e.next }

// since returns the inodes changed from an event on, or false if that is not known.
func (e *eventLog) since(event uint64) (map[uint64]struct{}, bool) {
	if event < e.floor {
		return nil, false
	}
	var inodes map[uint64]struct{}
	for n := event; n < e.next; n++ {
		if inodes == nil {
			inodes = map[uint64]struct{}{}
		}
		inodes[e.ring[n%uint64(len(e.ring))]] = struct{}{}
	}
	return inodes, true
}
