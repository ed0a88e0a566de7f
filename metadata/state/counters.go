package state

import "errors"

// counter numbers one of the counters of a partition. They live in one record,
// so that a command reads and writes one key for all of them. Append only: the
// number is the place in the record.
type counter int

const (
	// What numbers are issued from. Each holds the last one issued.
	cInode counter = iota
	cStripe
	cTable
	cContent
	cSession
	cJob
	cDevice
	cTenant

	cClusterTime // milliseconds
	cWall        // newest wall time seen, nanoseconds
	cCommands    // applied
	cEntries     // log entries that held them

	// How much there is.
	cSessions
	cInodes
	cStripes
	cRepairQueued  // stripes on the repair queue
	cPendingBytes  // dead, waiting for deletion
	cLeakedBytes   // held by devices, explained by nothing
	cLostStripes   // fewer than k chunks left
	cEndedSessions // whose belongings are still being cleaned up
	cTopology      // raised by every change of hosts and devices
	cRepairRunning // stripes that a repair job works on
	cJobsEnded     // jobs that ended and are still remembered
	// Stripes on the repair queue, by how many more hosts they survive; the
	// last one is for all above.
	cSpare
	_
	_
	_
	_
	_
	_
	cSpareMany
	// From here on a counter is in the record only where it, or one after it, is
	// not 0: what builds without them wrote stays the same bytes.
	cNames  // 1 where inodes keep their names
	cObject // last number issued
	cObjects
	cObjectBytes
	cObjectIntents
	cUnsettled // keys
	cPolicies  // directories with one of their own
	cMoves     // live FLUSH, STAGE and EVICT jobs that have more to do than to settle
	cFlushes
	cStages
	cEvictions
	cDeletions   // live DELETE_OBJECT jobs
	cHolds       // exclusive leases
	cRebalancing // stripes that a REBALANCE job works on
	cLossChanges // how often a stripe or a file was lost, or found again
	cLostSteps   // committed checkpoints that have lost bytes
	cKeptBytes   // of cPendingBytes: those in tabKept
	cBadObjects  // objects that are not in their bucket as they were recorded
	numCounters
)

// counters1 is how many counters the record always has.
const counters1 = cSpareMany + 1

const countersVersion = 1

type counters [numCounters]uint64

func (c *counters) encode() []byte {
	b := make([]byte, 0, 2+4*numCounters)
	b = append(b, countersVersion)
	n := int(numCounters)
	for n > int(counters1) && c[n-1] == 0 {
		n--
	}
	b = putUvarint(b, uint64(n))
	for _, v := range c[:n] {
		b = putUvarint(b, v)
	}
	return b
}

func (c *counters) decode(b []byte) error {
	d := dec{b: b}
	d.version(countersVersion)
	n := d.count(1)
	if n > int(numCounters) {
		n = int(numCounters) // counters of a newer build would be lost: end() reports them
	}
	*c = counters{}
	for i := 0; i < n; i++ {
		c[i] = d.uvarint()
	}
	if n > int(counters1) && c[n-1] == 0 {
		d.fail(errors.New("the last counter is 0, and should not be there"))
	}
	return d.end("counters")
}
