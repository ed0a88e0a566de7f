package lead

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Member is one server of the replicated log.
type Member struct {
	ID        string
	Addresses []string // where clients reach it; may be empty
	Voter     bool
	Leader    bool
	Alive     bool          // heard of lately; known on the leader
	Match     uint64        // last index known to be on its disk; known on the leader
	Contact   time.Duration // since it answered last; negative where it has not
}

// Seating is what a Store can besides whose directory is one of many: before a
// server may take part its group must know it. Its methods may be called before Run.
type Seating interface {
	// Seat returns what this server's directory is, and how far it has come.
	Seat() (Seat, error)
	// Admit notes, durably, that it may take part in a group of that incarnation,
	// and Enter that it does.
	Admit(to moraine.MarkedIncarnation) error
	Enter() error
	// Incarnation is what the directory is of, as far as is known, and
	// SawIncarnation the number that its state has.
	Incarnation() moraine.MarkedIncarnation
	SawIncarnation(number moraine.Incarnation)
	// GiveUp ends the store for good, since who told of an incarnation that
	// outlives its own. The error says what to do.
	GiveUp(newer moraine.MarkedIncarnation, who string) error
}

// Seat is a server's directory.
type Seat struct {
	DataID            moraine.UUID
	Admitted, Entered bool
}

// Membership is what a Store can besides whose members may change; of those that
// change something AddMember says what errors mean.
type Membership interface {
	// Settled is whether the members are known to be what a majority agreed to.
	Settled() bool
	// AddMember makes id a member without a vote, or with one. NotLeader: nothing
	// was done; any other error: unknown, and it may be repeated.
	AddMember(ctx context.Context, id, address string, voter bool) error
	RemoveMember(ctx context.Context, id string) error
	// Transfer makes the voter id the leader.
	Transfer(ctx context.Context, id string) error
	// MemberStatus is what this server knows of its log and disk.
	MemberStatus() *wire.MemberStatus
}

// Stage is how far it has come, as messages have it.
func (s Seat) Stage() wire.MemberStage {
	switch {
	case s.Entered:
		return wire.MemberStage_MEMBER_STAGE_ENTERED
	case s.Admitted:
		return wire.MemberStage_MEMBER_STAGE_ADMITTED
	}
	return wire.MemberStage_MEMBER_STAGE_NEW
}

// Millis keeps what is negative, however little, negative: there it means not known.
func Millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}
