package record

import "errors"

// Counter is the index of one counter of a partition. One record has all counters, so that a
// command reads and writes one key. Only append counters: the index is the place in the record.
type Counter int

const (
	// Counters that issue numbers. Each has the last number issued.
	CInode Counter = iota
	CStripe
	CTable
	CContent
	CSession
	CJob
	CDevice
	CTenant

	CClusterTime // milliseconds
	CWall        // newest wall time seen by the state, nanoseconds
	CCommands    // commands applied
	CEntries     // log entries with these commands

	// Totals.
	CSessions
	CInodes
	CStripes
	CRepairQueued  // stripes on the repair queue
	CPendingBytes  // dead chunks that wait for deletion
	CLeakedBytes   // chunks on devices that no record explains
	CLostStripes   // fewer than k chunks left
	CEndedSessions // ended sessions with belongings still to remove
	CTopology      // grows with every change of hosts and devices
	CRepairRunning // stripes that a repair job works on
	CJobsEnded     // ended jobs that are still remembered
	// Stripes on the repair queue, by the number of further host failures that they survive; the
	// last counter has all higher numbers.
	CSpare
	_
	_
	_
	_
	_
	_
	CSpareMany
	// The counters from here on are in the record only if they, or a later one, are not 0.
	CObject // last number issued
	CObjects
	CObjectBytes
	CObjectIntents
	CUnsettled // keys
	CPolicies  // directories with a policy of their own
	CMoves     // live FLUSH, STAGE and EVICT jobs that do more than settle
	CFlushes
	CStages
	CEvictions
	CDeletions   // live DELETE_OBJECT jobs
	CRebalancing // stripes that a REBALANCE job works on
	CLossChanges // how often a stripe or file became lost, or readable again
	CLostSteps   // committed checkpoints that have lost bytes
	CKeptBytes   // part of CPendingBytes: chunks in TabKept
	CBadObjects  // objects whose bucket object differs from the record
	CReserved    // bytes that ranks of open steps announced, and have not sealed
	CStuckMoves  // live jobs of the object tier that fail again and again: see Job.Stuck
	CMemory      // last number issued of stripes with chunks in memory
	CLocked      // inodes with advisory locks
	CInline      // last number issued of records with content
	CInlines     // records with content of small files
	CInlineBytes // the bytes in them
	CLinger      // last number issued of files that lost their last name while sessions might have them open
	COpeners     // sessions that may have files open
	numCounters
)

// counters1 is the number of counters that every record has.
const counters1 = CSpareMany + 1

const countersVersion = 1

// Counters are all counters of a partition, by Counter.
type Counters [numCounters]uint64

// Encode returns the stored value.
func (n *Counters) Encode() []byte { return n.fields(encoder(int(2 + 4*numCounters))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (n *Counters) Decode(b []byte) error { return n.fields(decoder(b)).End("counters") }

func (n *Counters) fields(c *codec) *codec {
	c.version(countersVersion)
	last := int(numCounters)
	for !c.reading && last > int(counters1) && n[last-1] == 0 {
		last--
	}
	c.count(&last, 1)
	if c.reading {
		// The counters of a newer build would be lost: End reports the remaining bytes.
		last = min(last, int(numCounters))
		*n = Counters{}
	}
	c.uvarints(n[:last])
	if last > int(counters1) && n[last-1] == 0 {
		c.fail(errors.New("the last counter is 0, and should not be there"))
	}
	return c
}
