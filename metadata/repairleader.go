package metadata

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// maxMissing and judgeFor are those of repair.Config. They are variables only for tests.
var (
	maxMissing uint64 = 4096
	judgeFor          = 2 * time.Second
)

// repairLeader is the part of the leader that repair uses. It implements repair.Leader.
type repairLeader struct {
	permits  *permits
	sessions *sessions
}

func (p repairLeader) PermitRepairs(c *lead.Call, intents []*wire.Intent) ([]byte, error) {
	return p.permits.permitRepairs(c, intents)
}

func (p repairLeader) PermitStripes(c *lead.Call, stripes []*wire.Stripe) error {
	return p.permits.permitStripes(c, stripes)
}

func (p repairLeader) Scopes() map[moraine.InodeID]bool { return p.sessions.scopes() }
