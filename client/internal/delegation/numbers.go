package delegation

import (
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// firstNumbers is how many inode numbers the desk reserves at first; each reservation is of twice
	// as many, up to mostNumbers.
	firstNumbers, mostNumbers = 1024, 16384
)

// numbers are the reserved numbers of inodes to come, in order.
type numbers struct {
	ranges [][2]uint64 // first and end
	size   uint32      // of the next reservation
	asking bool
	nobody uint32 // what the service makes of user and group 0
}

func (n *numbers) left() (count uint64) {
	for _, r := range n.ranges {
		count += r[1] - r[0]
	}
	return count
}

// want returns how many numbers to reserve next.
func (n *numbers) want() uint32 { return max(n.size, firstNumbers) }

// owner is the user or group of what the session makes for one.
func (n *numbers) owner(id uint32) uint32 {
	if id == 0 {
		return n.nobody
	}
	return id
}

// got adds a reservation.
func (n *numbers) got(r *wire.DelegateReply) {
	if r.GetCount() == 0 {
		return
	}
	n.nobody = r.Nobody
	n.ranges = append(n.ranges, [2]uint64{r.First, r.First + uint64(r.Count)})
	n.size = min(2*n.want(), mostNumbers)
}

// number takes the next number, and reserves others before they run out. The caller holds the mutex.
func (d *table) number() (uint64, bool) {
	n := &d.numbers
	if n.left() < uint64(n.want()/4) && !n.asking {
		n.asking = true
		d.running.Go(d.reserve)
	}
	if len(n.ranges) == 0 {
		return 0, false
	}
	r := &n.ranges[0]
	number := r[0]
	if r[0]++; r[0] == r[1] {
		n.ranges = n.ranges[1:]
	}
	return number, true
}

// reserve asks for numbers.
func (d *table) reserve() {
	d.mu.Lock()
	session, want := d.session, d.numbers.want()
	d.mu.Unlock()
	resp, err := d.Service.Send(d.life, &wire.MetaRequest{Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Numbers: want}}}, session)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.numbers.asking = false
	d.times.saw(resp.GetDelegate().GetNow(), d.Clock.Now())
	switch {
	case session != d.session:
	case err != nil || resp.GetDelegate().GetCount() == 0:
		d.Log.Warn("the service reserved no inode numbers; directories are given back", "err", err)
		d.giveAll()
	default:
		d.numbers.got(resp.GetDelegate())
	}
	d.wake()
}
