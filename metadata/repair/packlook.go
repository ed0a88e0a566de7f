package repair

import (
	"cmp"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/place"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// packGroups bounds the groups of files collected at once, by tenant, scheme and domain.
	packGroups = 1024
	// packPolicies bounds the directories whose policy and domain one pass remembers.
	packPolicies = 1024
)

// packGroup identifies files that may share a stripe: of one tenant, below one directory, with one
// scheme.
type packGroup struct {
	tenant moraine.Tenant
	packPlace
}

// packPlace has the properties of all files of a directory.
type packPlace struct {
	scheme moraine.Scheme  // zero: its files are not packed now
	domain moraine.InodeID // see content.PackDomain
}

// packing is a group's files that will be packed together.
type packing struct {
	files []moraine.InodeID
	bytes int64
	// due is the part of them in sparse stripes: it is rewritten if it is not packed.
	due []found
}

// packer collects small files during a pass.
type packer struct {
	groups map[packGroup]*packing
	order  []packGroup // in the order in which they began
	places map[moraine.InodeID]packPlace
	scopes map[moraine.InodeID]bool // directories to which sessions are confined
}

// offer adds a file with so many bytes in small copied stripes, or in a sparse
// one, that may lose that many chunks. It returns true if the file qualifies.
// The rest of its content, if any, must be in the metadata. It must be cold, and
// its new scheme must protect it as well. It must have no copies, unless all of
// the file is in the metadata.
func (s *sweep) offer(r kvtx.Reader, file moraine.InodeID, bytes int64, lose uint8, due []found) (bool, error) {
	if s.rw.cfg.PackAfter < 0 {
		return false, nil
	}
	p, ok, err := content.FindPackable(s.rw.Machine.View(r), file)
	if err != nil || !ok || p.Bytes != bytes || bytes+p.Inline > rewriteSmall || bytes+p.Inline == 0 || p.Unchanged < s.coldAfter(p) {
		return false, err
	}
	place, err := s.placeOf(r, p.Parent)
	if err != nil || place.scheme.K == 0 || bytes > 0 && (place.scheme.K < 2 || place.scheme.M != lose) {
		return false, err
	}
	g := packGroup{p.Tenant, place}
	in := s.packs.groups[g]
	if in == nil {
		if len(s.packs.order) == packGroups {
			s.endGroup(s.packs.order[0])
		}
		in = &packing{}
		s.packs.groups[g] = in
		s.packs.order = append(s.packs.order, g)
	}
	in.files, in.bytes, in.due = append(in.files, file), in.bytes+p.Bytes+p.Inline, append(in.due, due...)
	if len(in.files) == content.MaxPackFiles || in.bytes >= rewriteJobBytes {
		s.endGroup(g)
	}
	return true, nil
}

// inlineAfter is how long nobody must have changed a file whose content the metadata keeps before it
// is packed, at most; pressedAfter is the same once the metadata keeps much.
const inlineAfter, pressedAfter = time.Hour, time.Minute

// coldAfter returns how long nobody must have changed a file before it is packed, in nanoseconds.
func (s *sweep) coldAfter(p content.Packable) int64 {
	after := s.rw.cfg.PackAfter
	if p.Inline > 0 {
		after = min(after, inlineAfter)
		if p.Pressed {
			after = min(after, pressedAfter)
		}
	}
	return after.Nanoseconds()
}

// placeOf returns the scheme and domain for files of a directory. The scheme is zero if there is no
// room now for one that survives the loss of as many hosts as of chunks.
func (s *sweep) placeOf(r kvtx.Reader, dir moraine.InodeID) (packPlace, error) {
	known, ok := s.packs.places[dir]
	if ok {
		return known, nil
	}
	scheme, err := names.PolicyScheme(s.rw.Machine.View(r), dir)
	if err != nil {
		return packPlace{}, err
	}
	domain, err := content.PackDomain(s.rw.Machine.View(r), dir, s.packs.scopes)
	if err != nil {
		return packPlace{}, err
	}
	v := s.rw.fleet.Topology.View()
	if scheme.K == 0 {
		scheme = v.DefaultScheme()
	}
	p, err := place.Place(v.Place, place.Request{Stripe: 1, Scheme: scheme, MinProtection: s.rw.cfg.MinProtection})
	if err != nil || p.Scheme != scheme || p.Protects < int(scheme.M) {
		scheme = moraine.Scheme{}
	}
	if len(s.packs.places) == packPolicies {
		clear(s.packs.places)
	}
	s.packs.places[dir] = packPlace{scheme, domain}
	return s.packs.places[dir], nil
}

// endGroup makes a task of a group's files if packing helps. The result is
// coded because it is larger than a small stripe, and many stripes become one.
// Too few bytes are left alone, except those that must leave their stripe.
func (s *sweep) endGroup(g packGroup) {
	in := s.packs.groups[g]
	delete(s.packs.groups, g)
	s.packs.order = slices.DeleteFunc(s.packs.order, func(o packGroup) bool { return o == g })
	if len(in.files) < wire.LeastPacked && (len(in.files) < 2 || in.bytes <= rewriteSmall) {
		s.later(in.due)
		return
	}
	slices.Sort(in.files)
	task := &wire.RewriteTask{Settled: uint64(s.settled)}
	for _, f := range slices.Compact(in.files) {
		task.Files = append(task.Files, uint64(f))
	}
	s.tasks = append(s.tasks, rewriteTask{task: task, bytes: in.bytes})
}

// packRest ends all groups.
func (s *sweep) packRest() {
	for len(s.packs.order) > 0 {
		s.endGroup(s.packs.order[0])
	}
}

// leaveShared moves all parts out of a sparse stripe. Files that have nothing else are packed with
// others; the parts of other files are rewritten.
func (s *sweep) leaveShared(r kvtx.Reader, record *moraine.Stripe, parts []found) error {
	slices.SortFunc(parts, func(a, b found) int { return cmp.Compare(a.file, b.file) })
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].file == parts[0].file {
			n++
		}
		of := parts[:n]
		parts = parts[n:]
		if n == 1 && of[0].whole {
			if ok, err := s.offer(r, of[0].file, of[0].named.Bytes, record.Scheme.M, of); err != nil {
				return err
			} else if ok {
				continue
			}
		}
		s.later(of)
	}
	return nil
}

// later collects parts of stripes for rewriting. It orders the rewriting, grouped by file, once it
// has many parts; the end of the pass does so for the rest.
func (s *sweep) later(parts []found) {
	if s.together = append(s.together, parts...); len(s.together) >= rewriteShared {
		s.order(s.together, 0)
		s.together = nil
	}
}
