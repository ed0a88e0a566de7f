package fleet

import (
	"maps"
	"slices"
	"sync"

	"github.com/morainefs/moraine/transport/wire"
)

// maxBucketURL bounds the name of a bucket in a mover's probe report, in bytes.
const maxBucketURL = 2048

// bucketTraits has what each host's mover found out about its bucket since this leader began. It
// keeps one report for each host, so that a host that invents names cannot fill memory.
type bucketTraits struct {
	mu     sync.Mutex // guards the following fields
	byHost map[string]traitsWord
	words  uint64
}

type traitsWord struct {
	said   *wire.BucketTraits
	number uint64 // order of the report
}

// Note records the findings of a registered host; nil is ignored.
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

// All returns the latest report on each bucket, in order of names.
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
