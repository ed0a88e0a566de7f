package client

import (
	"slices"
	"sort"
)

// span is a range [off, end) of a file whose newest bytes are in a batch that is not committed
// yet.
type span struct {
	off, end int64
	b        *batch
	// mem is the bytes while they are in the batch's memory; nil once they are only on
	// chunkservers.
	mem []byte
	// at is the offset of the bytes among those that the batch sends, once it is being sent.
	at int64
}

// from returns the span without what lies before off.
func (s span) from(off int64) span {
	if d := off - s.off; d > 0 {
		s.off, s.at = off, s.at+d
		if s.mem != nil {
			s.mem = s.mem[d:]
		}
	}
	return s
}

// to returns the span without what lies from end on.
func (s span) to(end int64) span {
	if d := s.end - end; d > 0 {
		s.end = end
		if s.mem != nil {
			s.mem = s.mem[:int64(len(s.mem))-d]
		}
	}
	return s
}

// spans are in order of offset and do not overlap.
type spans []span

// first returns the index of the first span that ends past off.
func (l spans) first(off int64) int {
	return sort.Search(len(l), func(i int) bool { return l[i].end > off })
}

// end returns the offset past the last span.
func (l spans) end() int64 {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].end
}

// within returns the parts of spans that lie in [off, end).
func (l spans) within(off, end int64) spans {
	var out spans
	for i := l.first(off); i < len(l) && l[i].off < end; i++ {
		out = append(out, l[i].from(off).to(end))
	}
	return out
}

// cut removes [off, end).
func (l *spans) cut(off, end int64) {
	i := l.first(off)
	j := i
	for j < len(*l) && (*l)[j].off < end {
		j++
	}
	if i == j {
		return
	}
	var rest []span
	if s := (*l)[i]; s.off < off {
		rest = append(rest, s.to(off))
	}
	if s := (*l)[j-1]; s.end > end {
		rest = append(rest, s.from(end))
	}
	*l = slices.Replace(*l, i, j, rest...)
}

// put lays s over the existing spans. It reports whether s continued the previous span, in the
// file and in memory, and so added no span.
func (l *spans) put(s span) (merged bool) {
	l.cut(s.off, s.end)
	i := l.first(s.off)
	if i > 0 {
		p := &(*l)[i-1]
		if p.end == s.off && p.b == s.b && follows(p.mem, s.mem) {
			p.end = s.end
			p.mem = p.mem[:len(p.mem)+len(s.mem)]
			return true
		}
	}
	*l = slices.Insert(*l, i, s)
	return false
}

// follows reports whether b lies directly behind a in the same memory.
func follows(a, b []byte) bool {
	return len(b) > 0 && cap(a)-len(a) >= len(b) && &a[:len(a)+1][len(a)] == &b[0]
}

// drop removes the spans of the batches for which gone returns true.
func (l *spans) drop(gone func(*batch) bool) {
	*l = slices.DeleteFunc(*l, func(s span) bool { return gone(s.b) })
}
