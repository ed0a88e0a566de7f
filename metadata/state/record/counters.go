package record

import "errors"

// Counter numbers one of the counters of a partition. They live in one record,
// so that a command reads and writes one key for all of them. Append only: the
// number is the place in the record.
type Counter int

const (
	// What numbers are issued from. Each holds the last one issued.
	CInode Counter = iota
	CStripe
	CTable
	CContent
	CSession
	CJob
	CDevice
	CTenant

	CClusterTime // milliseconds
	CWall        // newest wall time seen, nanoseconds
	CCommands    // applied
	CEntries     // log entries that held them

	// How much there is.
	CSessions
	CInodes
	CStripes
	CRepairQueued  // stripes on the repair queue
	CPendingBytes  // dead, waiting for deletion
	CLeakedBytes   // held by devices, explained by nothing
	CLostStripes   // fewer than k chunks left
	CEndedSessions // whose belongings are still being cleaned up
	CTopology      // raised by every change of hosts and devices
	CRepairRunning // stripes that a repair job works on
	CJobsEnded     // jobs that ended and are still remembered
	// Stripes on the repair queue, by how many more hosts they survive; the
	// last one is for all above.
	CSpare
	_
	_
	_
	_
	_
	_
	CSpareMany
	// From here on a counter is in the record only where it, or one after it, is
	// not 0: what builds without them wrote stays the same bytes.
	CNames  // 1 where inodes keep their names
	CObject // last number issued
	CObjects
	CObjectBytes
	CObjectIntents
	CUnsettled // keys
	CPolicies  // directories with one of their own
	CMoves     // live FLUSH, STAGE and EVICT jobs that have more to do than to settle
	CFlushes
	CStages
	CEvictions
	CDeletions   // live DELETE_OBJECT jobs
	CHolds       // exclusive leases
	CRebalancing // stripes that a REBALANCE job works on
	CLossChanges // how often a stripe or a file was lost, or found again
	CLostSteps   // committed checkpoints that have lost bytes
	CKeptBytes   // of cPendingBytes: those in tabKept
	CBadObjects  // objects that are not in their bucket as they were recorded
	numCounters
)

// counters1 is how many counters the record always has.
const counters1 = CSpareMany + 1

const countersVersion = 1

type Counters [numCounters]uint64

func (c *Counters) Encode() []byte {
	b := make([]byte, 0, 2+4*numCounters)
	b = append(b, countersVersion)
	n := int(numCounters)
	for n > int(counters1) && c[n-1] == 0 {
		n--
	}
	b = PutUvarint(b, uint64(n))
	for _, v := range c[:n] {
		b = PutUvarint(b, v)
	}
	return b
}

func (c *Counters) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(countersVersion)
	n := d.Count(1)
	if n > int(numCounters) {
		n = int(numCounters) // counters of a newer build would be lost: end() reports them
	}
	*c = Counters{}
	for i := 0; i < n; i++ {
		c[i] = d.Uvarint()
	}
	if n > int(counters1) && c[n-1] == 0 {
		d.fail(errors.New("the last counter is 0, and should not be there"))
	}
	return d.End("counters")
}
