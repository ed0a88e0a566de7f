package delegation

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// The desk asks for a directory after enough changes of names by its client in it within askWindow.
	askAfter, askWindow = 2, time.Second
	// firstPause is for how long it asks not again after a recall, or a refusal; the pause doubles up to
	// lastPause with each further recall.
	firstPause, lastPause = 10 * time.Second, 5 * time.Minute
	// maxNewAsks is how many requests for new directories run at the same time.
	maxNewAsks = 8
	// maxAsks bounds the directories of which the desk remembers changes and recalls.
	maxAsks = 4096
	// maxListed is how many entries a directory has at most when the desk asks for it, and maxNames how
	// many it may get before it is given back.
	maxListed, maxNames = 20_000, 200_000
	// listPage is how many entries one request lists.
	listPage = 1000
)

// made counts a change of names that the service carried out in a directory. After enough of them the desk
// asks for it. The caller holds the mutex.
func (d *table) made(dir uint64) {
	if d.dirs[dir] != nil || d.Service.Standing() == (Standing{}) {
		return
	}
	if a := d.asks.at(dir); a.enough(d.Clock.Now()) {
		d.askFor(dir, a)
	}
}

// askFor asks for a directory, unless it must not now. The caller holds the mutex.
func (d *table) askFor(id uint64, a *ask) {
	st := d.Service.Standing()
	if st == (Standing{}) || d.ending > 0 || len(d.dirs) >= manyDirs || a.asking || d.Clock.Now().Before(a.from) {
		return
	}
	if d.notices.ends(id) {
		return // a request that gives it back might end the next delegation
	}
	d.asks.begin(a)
	d.engaged.Store(true)
	d.running.Go(func() { d.request(id, st) })
}

// madeDir asks for a directory that the service has just made for this client, before the client makes
// anything in it. So a tree is delegated from its top. No kernel has names of the directory yet, and gets
// none, so nobody waits until kernels have none. The caller holds the mutex.
func (d *table) madeDir(id, parent uint64) {
	st := d.Service.Standing()
	if id == 0 || st == (Standing{}) || d.ending > 0 || d.dirs[id] != nil || d.dirs[parent] != nil || len(d.dirs) >= manyDirs || d.asks.forNew >= maxNewAsks {
		return
	}
	if d.Clock.Now().Before(d.asks.at(parent).from) { // what stands against the parent often stands against this one
		return
	}
	a := d.asks.at(id)
	if a.asking {
		return
	}
	d.asks.beginNew(a, parent)
	d.engaged.Store(true)
	d.Service.Hide(id)
	d.running.Go(func() { d.request(id, st) })
}

// request asks for a directory.
func (d *table) request(id uint64, st Standing) {
	d.mu.Lock()
	want := uint32(0)
	if d.numbers.left() == 0 && d.adopt(st.Session) && !d.numbers.asking {
		want, d.numbers.asking = firstNumbers, true // one at a time, so that they arrive in order
	}
	d.mu.Unlock()
	resp, err := d.Service.Send(d.life, &wire.MetaRequest{Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: id, Numbers: want}}}, st.Session)
	r := resp.GetDelegate()
	if r.GetDelegated() {
		d.Service.Hide(id)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.times.saw(r.GetNow(), d.Clock.Now())
	a := d.asks.at(id)
	recalled, isNew := d.asks.end(a, r, d.Clock.Now())
	lent := d.Clock.Now().Add(d.Loan)
	if isNew { // it was hidden since it was made
		lent = time.Time{}
		if !r.GetDelegated() {
			d.Service.Show(id)
		}
	}
	if want > 0 && d.session == st.Session {
		d.numbers.asking = false
		d.numbers.got(r)
	}
	if !r.GetDelegated() {
		d.Log.Debug("the service delegates no directory", "inode", id, "why", r.GetWhy(), "err", err)
		d.wake()
		if recalled { // the answer that delegated it is lost, or an earlier delegation is meant
			d.running.Go(func() { d.giveBack([]uint64{id}, st.Session) })
		}
		return
	}
	d.Metrics.Delegations.Inc()
	l := &dir{id: id, names: map[string]entry{}, under: st, state: dirLoading, lent: lent}
	d.nodes[id], d.dirs[id] = &node{attr: r.Attr, dir: l}, l
	if d.adopt(st.Session) && !recalled {
		d.load(l, true)
		return
	}
	d.give(l)
}

// adopt makes a session the one of all delegations, if the desk has none of another. The caller holds
// the mutex.
func (d *table) adopt(session uint64) bool {
	if d.session == session {
		return true
	}
	if len(d.queue.ops) > 0 {
		return false
	}
	for _, l := range d.dirs {
		if l.under.Session == d.session {
			return false
		}
	}
	d.session, d.numbers = session, numbers{}
	return true
}

// load reads the attributes of a directory, and its names if listed is set, while no request may
// change them. The caller holds the mutex.
func (d *table) load(l *dir, listed bool) {
	l.state = dirLoading
	d.wake()
	d.running.Go(func() {
		attr, names, err := d.read(d.life, l.id, listed)
		d.mu.Lock()
		defer d.mu.Unlock()
		n := d.nodes[l.id]
		if l.state != dirLoading || n == nil || n.dir != l {
			return
		}
		if err != nil || len(names) > maxListed {
			d.Log.Debug("a delegated directory is given back", "inode", l.id, "names", len(names), "err", err)
			d.asks.at(l.id).from = d.Clock.Now().Add(lastPause)
			d.give(l)
			return
		}
		d.times.saw(attr.Ctime, d.Clock.Now())
		n.attr, l.stale, l.state = attr, false, dirLive
		if listed {
			l.names, l.changed = names, d.Clock.Now()
		}
		d.wake()
	})
}

// read reads a directory as it is when its queue is sent and no request changes it.
func (d *table) read(ctx context.Context, id uint64, listed bool) (*wire.Attr, map[string]entry, error) {
	var last, session uint64
	err := d.until(ctx, func() bool {
		last, session = max(last, d.queue.last), d.session
		if d.queue.done < last && d.queue.about[id] > 0 {
			d.want(last)
			return false
		}
		return d.holds[id] == 0
	})
	if err != nil {
		return nil, nil, err
	}
	var names map[string]entry
	var lerr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if listed {
			names, lerr = d.list(ctx, id, session)
		}
	}()
	resp, err := d.Service.Send(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: id}}}, session)
	<-done
	attr := resp.GetEntry().GetAttr()
	if err == nil && attr == nil {
		err = retry.BadReply("stat")
	}
	return attr, names, errors.Join(err, lerr)
}

// list reads the names of a directory, up to one page past maxListed.
func (d *table) list(ctx context.Context, id, session uint64) (map[string]entry, error) {
	names, after := map[string]entry{}, ""
	for {
		r, keep, err := d.Service.List(ctx, &wire.ReadDir{Inode: id, After: after, Limit: listPage}, session)
		if err != nil {
			return nil, err
		}
		listed, before := len(r.Entries), len(names)
		for _, e := range r.Entries {
			names[e.Name] = entryOf(e.Attr)
			after = e.Name
		}
		d.mu.Lock() // what is queued about a file, by another of its names, is newer than the listing
		keep(slices.DeleteFunc(r.Entries, func(e *wire.DirEntry) bool { return d.queue.about[e.Attr.GetInode()] > 0 }), before)
		d.mu.Unlock()
		if !r.More || listed == 0 || len(names) > maxListed {
			return names, nil
		}
	}
}
