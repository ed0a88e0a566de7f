package repair

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// sweep is a look through all files, under way. It goes on from where it was: what changes
// meanwhile is seen, or will be the next time.
type sweep struct {
	rw      *Rewriter
	settled moraine.StripeID
	after   moraine.InodeID   // inodes up to it are in files, or done
	files   []moraine.InodeID // the first one is under way
	last    bool              // there are no files but these
	from    int64             // offset in the file under way
	parted  bool              // which was judged in part
	named   map[moraine.StripeID]content.Named
	// shared is what each of several files names of a stripe of which more is to be seen, and
	// sharedParts how many there are; together is what is to be rewritten of those of which
	// all was.
	shared      map[moraine.StripeID][]found
	sharedParts int
	together    []found
	packs       packer
	unjudged    uint64
	tasks       []rewriteTask
	ended       bool
}

func newSweep(rw *Rewriter, settled moraine.StripeID) *sweep {
	return &sweep{rw: rw, settled: settled, named: make(map[moraine.StripeID]content.Named), shared: make(map[moraine.StripeID][]found),
		packs: packer{groups: make(map[packGroup]*packing), places: make(map[moraine.InodeID]packPlace), scopes: rw.leader.Scopes()}}
}

// found is what a file names of a stripe.
type found struct {
	file  moraine.InodeID
	id    moraine.StripeID
	named content.Named
	whole bool  // it is all that the file has
	lose  uint8 // of the stripe's chunks that it may lose
}

// skip leaves the file under way: what was counted of it is half. What another file names of
// the same stripes is then not all, so that those are left.
func (s *sweep) skip() {
	clear(s.named)
	s.tasks = nil
	if s.from, s.parted = 0, false; len(s.files) > 0 {
		s.files = s.files[1:]
	}
}

// look looks at some more records.
func (s *sweep) look(r kvtx.Reader) error {
	m := s.rw.Machine
	for left := rewriteLooks; left > 0; {
		if len(s.files) == 0 {
			if s.last {
				s.end()
				return nil
			}
			files, last, err := content.Rewritables(m.View(r), s.after, rewriteInodes)
			if err != nil {
				return err
			}
			s.files, s.after, s.last = files, last, last == 0
			left -= rewriteInodes
			continue
		}
		n, next, err := content.NameStripes(m.View(r), s.files[0], s.from, left, s.named)
		if err != nil {
			return err
		}
		left -= n + 1
		if s.from = next; next >= 0 && len(s.named) < rewriteWindow {
			continue
		}
		left -= len(s.named)
		if err := s.judge(r, s.files[0], next < 0 && !s.parted); err != nil {
			return err
		}
		if clear(s.named); next < 0 {
			s.files, s.from, s.parted = s.files[1:], 0, false
		} else {
			s.parted = true
		}
	}
	return nil
}

// judge chooses those of the stripes that a file names which are to be rewritten; whole is
// where they are all that it names. What other files name too is judged when all of it was
// seen.
func (s *sweep) judge(r kvtx.Reader, file moraine.InodeID, whole bool) error {
	var chosen, small []found
	for id, named := range s.named {
		record, err := fleet.StripeByID(s.rw.Machine.View(r), id)
		if err != nil {
			return err
		}
		if record == nil {
			continue
		}
		f := found{file: file, id: id, named: named, whole: whole && len(s.named) == 1}
		if record.RefCount != named.Tables {
			if err := s.share(r, record, f); err != nil {
				return err
			}
			continue
		}
		if ok, err := s.choose(r, record, named); err != nil {
			return err
		} else if ok {
			chosen = append(chosen, f)
		} else if record.Scheme.IsCopies() && record.Length <= rewriteSmall && settled(record, s.settled) {
			f.lose = record.Scheme.M
			small = append(small, f)
		}
	}
	s.order(chosen, 0)
	if whole && len(small) == len(s.named) && len(small) < rewriteFewer {
		return s.offerSmall(r, file, small)
	}
	return s.pack(r, small)
}

// offerSmall has a file packed with others, all of whose content is in a few small stripes.
func (s *sweep) offerSmall(r kvtx.Reader, file moraine.InodeID, small []found) error {
	if len(small) == 0 {
		return nil
	}
	whole, err := s.unqueued(r, small)
	if err != nil || len(whole) < len(small) ||
		slices.ContainsFunc(small, func(f found) bool { return f.lose != small[0].lose }) {
		return err
	}
	var bytes int64
	for _, f := range small {
		bytes += f.named.Bytes
	}
	_, err = s.offer(r, file, bytes, small[0].lose, nil)
	return err
}

// unqueued are those of small stripes that do not wait for repair.
func (s *sweep) unqueued(r kvtx.Reader, small []found) (whole []found, err error) {
	for _, f := range small {
		queued, err := fleet.Queued(s.rw.Machine.View(r), f.id)
		if err != nil {
			return nil, err
		}
		if !queued {
			whole = append(whole, f)
		}
	}
	return whole, nil
}

// pack has small stripes of a file put together, where that makes them few.
func (s *sweep) pack(r kvtx.Reader, small []found) error {
	if len(small) < rewriteFewer {
		return nil
	}
	whole, err := s.unqueued(r, small)
	if err != nil {
		return err
	}
	slices.SortFunc(whole, inOrder)
	for len(whole) > 0 {
		n := min(len(whole), content.MaxRewriteStripes)
		extents := 0
		for _, f := range whole[:n] {
			extents += f.named.Extents
		}
		if (1+extents/rewriteRuns)*rewriteFewer <= n {
			s.order(whole[:n], rewriteFewer/2)
		}
		whole = whole[n:]
	}
	return nil
}

// inOrder sorts by files, and within each in the order of the file.
func inOrder(a, b found) int {
	return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.named.From, b.named.From), cmp.Compare(a.id, b.id))
}

// share keeps what a file, or a part of one, names of a stripe that has other references,
// until all of them were seen: files that were packed together are near each other, as their
// numbers are, so that few are kept at a time.
func (s *sweep) share(r kvtx.Reader, record *moraine.Stripe, f found) error {
	parts, known := s.shared[record.ID]
	if !known && len(s.shared) == rewriteShared || record.RefCount > rewriteParts || len(parts) == rewriteParts || s.sharedParts == rewriteSharedParts {
		s.unjudged++
		return nil
	}
	parts = append(parts, f)
	var all content.Named
	for _, f := range parts {
		all.Bytes, all.Tables = all.Bytes+f.named.Bytes, all.Tables+f.named.Tables
	}
	if all.Tables < record.RefCount {
		s.shared[record.ID], s.sharedParts = parts, s.sharedParts+1
		return nil
	}
	delete(s.shared, record.ID)
	s.sharedParts -= len(parts) - 1
	if all.Tables > record.RefCount { // one has gone since
		s.unjudged++
		return nil
	}
	ok, err := s.choose(r, record, all)
	if err != nil || !ok {
		return err
	}
	return s.leaveShared(r, record, parts)
}

// end makes tasks of what was gathered, once all files were seen.
func (s *sweep) end() {
	s.packRest()
	s.order(s.together, 0)
	s.together = nil
	s.rw.leave(s.unjudged + uint64(len(s.shared)))
	s.ended = true
}

// choose reports whether a stripe of which all that is named was seen is to be rewritten.
func (s *sweep) choose(r kvtx.Reader, record *moraine.Stripe, named content.Named) (bool, error) {
	s.rw.count(record, named)
	if !settled(record, s.settled) || !mostlyDead(record, named, s.rw.cfg.RewriteLive) {
		return false, nil
	}
	// What waits for repair may be lost for all that is known: that goes first.
	queued, err := fleet.Queued(s.rw.Machine.View(r), record.ID)
	return !queued, err
}

// order makes tasks of what was chosen, file by file and each in the order of the file, so
// that what comes to lie in one stripe is near each other. fewer is that of the tasks.
func (s *sweep) order(chosen []found, fewer uint32) {
	slices.SortFunc(chosen, inOrder)
	for len(chosen) > 0 {
		t := rewriteTask{inode: chosen[0].file, task: &wire.RewriteTask{Offset: uint64(chosen[0].named.From), Fewer: fewer}}
		for len(chosen) > 0 && chosen[0].file == t.inode && len(t.task.Stripes) < content.MaxRewriteStripes &&
			(t.bytes == 0 || t.bytes+chosen[0].named.Bytes <= rewriteJobBytes) {
			c := chosen[0]
			t.task.Stripes, t.bytes = append(t.task.Stripes, uint64(c.id)), t.bytes+c.named.Bytes
			t.task.End = max(t.task.End, uint64(c.named.To))
			chosen = chosen[1:]
		}
		s.tasks = append(s.tasks, t)
	}
}

// mostlyDead reports whether a stripe is worth to be rewritten: at most so many hundredths
// of it are named.
func mostlyDead(s *moraine.Stripe, named content.Named, live int) bool {
	return s.Length-named.Bytes >= rewriteLeast && named.Bytes*100 <= s.Length*int64(live)
}

// settled reports whether a stripe is as old as was given, and on its devices. The level of
// what is in memory alone is being settled: that is left alone.
func settled(s *moraine.Stripe, last moraine.StripeID) bool {
	return s.ID <= last && !slices.ContainsFunc(s.Chunks, func(c moraine.ChunkState) bool { return c.Level != moraine.NVMe })
}
