package fleet

import (
	"maps"
	"slices"
	"sync"

	"github.com/morainefs/moraine/transport/wire"
)

// maxBucketURL bounds the name of a bucket that a mover may say it has probed.
const maxBucketURL = 2048

// bucketTraits is what the mover of each host found out about its bucket since this leader
// began: one word for each host, so that a host that makes names up fills no memory.
type bucketTraits struct {
	mu     sync.Mutex // guards what follows
	byHost map[string]traitsWord
	words  uint64
}

type traitsWord struct {
	said   *wire.BucketTraits
	number uint64 // of the word, in order
}

// Note takes in what a registered host found; nil says nothing.
func (b *bucketTraits) Note(v *View, host string, said *wire.BucketTraits) {
	if said == nil || v.Hosts[host] == nil || len(said.Bucket) > maxBucketURL {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byHost == nil {
		b.byHost = make(map[string]traitsWord)
	}
	maps.DeleteFunc(b.byHost, func(host string, _ traitsWord) bool { return v.Hosts[host] == nil })
	b.words++
	b.byHost[host] = traitsWord{said, b.words}
}

// All returns what was said last of each bucket, in the order of their names.
func (b *bucketTraits) All() []*wire.BucketTraits {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := make(map[string]traitsWord)
	for _, w := range b.byHost {
		if have, ok := last[w.said.Bucket]; !ok || w.number > have.number {
			last[w.said.Bucket] = w
		}
	}
	var out []*wire.BucketTraits
	for _, name := range slices.Sorted(maps.Keys(last)) {
		out = append(out, last[name].said)
	}
	return out
}
