package incluster

import (
	"fmt"
	"math"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport"
)

// Check checks the state of every running metadata server for consistency: every
// record, counter, index and the running checksum. It returns the mismatches.
// Servers that have applied the same entries must have the same state.
func (c *Cluster) Check() error {
	sums := map[uint64]record.Sum{}
	for _, n := range c.nodes {
		l := n.current()
		if n.role != transport.RoleMetadata || l == nil || l.gone.Load() {
			continue
		}
		err := l.store.View(func(r kvtx.Reader, applied uint64) error {
			if applied == 0 {
				return nil // it has nothing yet
			}
			machine := state.New(0)
			problems, err := check.Check(machine.View(r))
			if err == nil && len(problems) > 0 {
				err = fmt.Errorf("state as of entry %d: %s", applied, strings.Join(problems, "; "))
			}
			if err != nil {
				return err
			}
			sum, err := kvtx.Sum(machine.View(r))
			if other, ok := sums[applied]; err == nil && ok && other != sum {
				err = fmt.Errorf("running checksum as of entry %d is %x, another server has %x", applied, sum, other)
			}
			sums[applied] = sum
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", n.id, err)
		}
	}
	return nil
}

// Tombstones counts the chunks that the leader knows to be dead and not yet
// deleted. Without a leader it uses a running server.
func (c *Cluster) Tombstones() (count int, err error) {
	leader := c.Leader()
	for _, n := range c.nodes {
		l := n.current()
		if n.role != transport.RoleMetadata || l == nil || l.gone.Load() || leader != "" && n.id != leader {
			continue
		}
		count = 0
		err = l.store.View(func(r kvtx.Reader, _ uint64) error {
			machine := state.New(0)
			devices, err := fleet.Devices(machine.View(r))
			for _, d := range devices {
				dead, err := fleet.Tombstones(machine.View(r), moraine.DeviceID(d.Id), math.MaxUint64, math.MaxInt)
				if err != nil {
					return err
				}
				kept, err := fleet.KeptTombstones(machine.View(r), moraine.DeviceID(d.Id), math.MaxUint64, 0, 0, math.MaxInt)
				if err != nil {
					return err
				}
				count += len(dead) + len(kept)
			}
			return err
		})
	}
	return count, err
}
