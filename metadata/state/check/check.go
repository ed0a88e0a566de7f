package check

import (
	"bytes"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// maxProblems bounds the problems that one Check lists.
const maxProblems = 100

// Check reads every pair of the partition and verifies the records against each other: reference
// counts, link counts, indexes, counters and the running sum. It returns a text for each
// contradiction, or nil. It keeps the whole namespace in memory and is meant for tests and
// inspection. An error means that the store failed or a value does not decode.
func Check(r *kvtx.View) ([]string, error) {
	c := &checker{View: r}
	for _, pass := range c.passes() {
		if err := pass(); err != nil {
			return c.problems, err
		}
	}
	return c.problems, nil
}

// CheckWithin is Check for a state of at most records inodes and stripes. For a larger one it
// checks only the running sum, which needs no memory, and returns whole as false.
func CheckWithin(r *kvtx.View, records uint64) (problems []string, whole bool, err error) {
	n, err := kvtx.ReadCounters(r)
	if err != nil {
		return nil, false, err
	}
	if n.Inodes+n.Stripes <= records {
		problems, err = Check(r)
		return problems, true, err
	}
	c := &checker{View: r}
	err = c.sum()
	return c.problems, false, err
}

// checker reads one partition and collects the contradictions. The types that embed it check one
// area each, and keep what later passes compare with.
type checker struct {
	*kvtx.View
	problems []string
}

// passes returns all passes in order: each may use what those before it collected.
func (c *checker) passes() []func() error {
	sessions := &sessionChecks{checker: c, sessions: make(map[moraine.SessionID]bool)}
	names := &nameChecks{sessionChecks: sessions, inodes: make(map[moraine.InodeID]*record.Inode), names: make(map[moraine.InodeID]int),
		content: make(map[uint64]*record.Inode), rows: make(map[string]bool)}
	objects := &objectChecks{nameChecks: names, uses: make(map[moraine.ObjectID]uint32), uploading: make(map[moraine.ObjectID]bool)}
	contents := &contentChecks{nameChecks: names, objects: objects, refs: make(map[moraine.TableID]uint32), base: make(map[moraine.TableID]int64),
		inlines: make(map[moraine.InlineID]uint32), stripes: make(map[moraine.StripeID]*moraine.Stripe), uses: make(map[moraine.StripeID]uint32),
		unsafe: make(map[moraine.TableID]bool), chunks: make(map[string]bool)}
	fleet := &fleetChecks{checker: c, stripes: contents.stripes}
	steps := &stepChecks{names}
	return []func() error{
		c.sum, sessions.allSessions,
		names.allInodes, names.dentries, names.nameRows, names.attributes, names.linkCounts,
		contents.allRefs, contents.tables, contents.allStripes, contents.allInlines, contents.grants,
		names.owned, names.locks, names.delegations, sessions.answers, sessions.openers, contents.counts, names.usages, names.quotas, contents.inMemory, contents.unsafeRows,
		fleet.fleetCounts, fleet.tombstones, fleet.repairs, fleet.intents, fleet.jobIndexes,
		steps.allSteps, steps.stepIndexes, steps.attempts, steps.seals, steps.stepLeases, steps.claims, steps.adoptions,
		objects.objects, objects.newestObjects, objects.badObjects, objects.objectKeys, objects.removedIndexes, objects.objectIntents,
		objects.objectSums, objects.liveMoves, objects.policies, objects.objectCounts,
	}
}

func (c *checker) problem(format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

// each calls fn with every pair of a table.
func (c *checker) each(table byte, fn func(key, value []byte) error) error {
	return c.EachIn(c.K.Table(table), func(key, value []byte) (bool, error) { return true, fn(key, value) })
}

func (c *checker) sum() error {
	var sum, want record.Sum
	lo, hi := c.K.All()
	sumKey := c.K.Meta(record.MetaSum)
	err := c.Each(lo, hi, func(key, value []byte) (_ bool, err error) {
		if bytes.Equal(key, sumKey) {
			want, err = record.DecodeSum(value)
			return true, err
		}
		sum.Add(key, value)
		return true, nil
	})
	if err == nil && sum != want {
		c.problem("the running sum is %x, but the pairs have the sum %x", want, sum)
	}
	return err
}
