package stripeio

import (
	"time"

	"github.com/morainefs/moraine/internal/limit"
)

// limits are the bounded resources for which calls of a client wait, each no longer than the
// client's patience.
type limits struct {
	writes, reads, buffers limit.Resource // memory
	ahead, helpers         limit.Resource // memory for which no call waits
	Stripes                limit.Resource // stripes of one file being sent
	File                   limit.Resource // the right to write to a file, or to change it at the service
	resubmits              limit.Resource // the right to resubmit a stripe
	extents                limit.Resource // the right to request the extents of a file
	grant                  limit.Resource // stripe numbers
	capability             limit.Resource // the right to renew the capability of a grant
	topology               limit.Resource // the right to request the topology
	bandwidth              limit.Resource // its share of the bandwidth that the client may use
	Fetched                limit.Resource // a block that is being read ahead
	Commits                limit.Resource // the next commit of what was written to a file
}

func newLimits(patience time.Duration, reports *limit.Reporter) limits {
	of := func(name, advice string) limit.Resource {
		return limit.Resource{Name: name, Patience: patience, Advice: advice, Reports: reports}
	}
	const memory = "raise the client's memory, or write and read fewer files at once"
	const servers = "look for chunkservers and metadata servers that do not answer"
	return limits{
		writes: of("memory of writes", memory), reads: of("memory of reads", memory), buffers: of("buffers", memory),
		ahead: of("memory of readahead", ""), helpers: of("memory of early parity", ""),
		Stripes: of("stripes in flight of a file", servers), File: of("turn to write to a file", servers),
		resubmits: of("turn to resubmit a stripe", servers), extents: of("turn to read the extents of a file", servers),
		grant: of("stripe numbers of a grant", servers), capability: of("turn to renew a capability", servers),
		topology: of("turn to read the topology", servers), bandwidth: of("bandwidth of the client", "raise its limit, or read and write fewer files at once"),
		Fetched: of("block that is read ahead", servers),
		// A batch is sent, and then committed, each within the patience.
		Commits: limit.Resource{Name: "commits of a file", Patience: 2 * patience, Advice: servers, Reports: reports},
	}
}
