package session

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// small are the files of a listed directory whose content the metadata has, when they were counted.
type small struct {
	files []uint64 // in order of name
	at    map[uint64]int
}

// SmallBeside returns up to n files in the directory of a file, if the content of all of them is in the
// metadata. Each file has the same neighbours as these have, so that a program that reads the directory in
// any order needs each group once. It returns nil without a listing in the cache.
func SmallBeside(m *Conn, inode uint64, n int) []uint64 {
	c := m.cache
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.attrs[inode]
	if !ok || at.attr.Inline == 0 || !c.usable() {
		return nil
	}
	l := c.leases[at.attr.Parent]
	if l == nil || !l.listed {
		return nil
	}
	if l.small == nil {
		l.small = smallOf(c, l)
	}
	i, ok := l.small.at[inode]
	if !ok {
		return nil
	}
	first := i / (n + 1) * (n + 1)
	var beside []uint64
	for _, other := range l.small.files[first:min(first+n+1, len(l.small.files))] {
		if other != inode {
			beside = append(beside, other)
		}
	}
	return beside
}

// smallOf finds the small files of a listed directory. The caller holds the mutex.
func smallOf(c *cache, l *leased) *small {
	s := &small{at: map[uint64]int{}}
	for _, name := range l.names {
		inode := l.entries[name]
		at, ok := c.attrs[inode]
		if !ok || at.attr.Type != wire.FileType_FILE_TYPE_REGULAR || at.attr.Inline == 0 || at.attr.Size > moraine.MaxInline {
			continue
		}
		s.at[inode] = len(s.files)
		s.files = append(s.files, inode)
	}
	return s
}
