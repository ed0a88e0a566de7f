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
	Addresses []string // where clients connect to it; may be empty
	Voter     bool
	Leader    bool
	Alive     bool          // it answered recently; known on the leader
	Match     uint64        // last log index known to be on its disk; known on the leader
	Contact   time.Duration // time since its last answer; negative if it never answered
}

// Seating is implemented by a Store whose directory is one of several in a group. The group must
// know the directory before the server may take part. Its methods may be called before Run.
type Seating interface {
	// Seat returns this server's directory and its progress.
	Seat() (Seat, error)
	// Admit records durably that the server may take part in a group of that incarnation. Enter
	// records that it does.
	Admit(to moraine.MarkedIncarnation) error
	Enter() error
	// Incarnation is the directory's incarnation, as far as known. SawIncarnation records the
	// number in its state.
	Incarnation() moraine.MarkedIncarnation
	SawIncarnation(number moraine.Incarnation)
	// Abandon stops the store permanently. The server named who reported an incarnation newer than
	// the store's own. The error says what an administrator must do.
	Abandon(newer moraine.MarkedIncarnation, who string) error
}

// Seat describes a server's directory.
type Seat struct {
	DataID            moraine.UUID
	Admitted, Entered bool
}

// Membership is implemented by a Store whose members may change. AddMember describes the errors of
// the methods that change something.
type Membership interface {
	// Settled reports whether the member list is known to be the one that a majority agreed to.
	Settled() bool
	// AddMember adds id as a member with or without a vote. NotLeader means that nothing changed.
	// After any other error the result is unknown, and the call may be repeated.
	AddMember(ctx context.Context, id, address string, voter bool) error
	RemoveMember(ctx context.Context, id string) error
	// Transfer makes the voter id the leader.
	Transfer(ctx context.Context, id string) error
	// MemberStatus is this server's own view of its log and disk.
	MemberStatus() *wire.MemberStatus
}

// Stage is the progress in wire form.
func (s Seat) Stage() wire.MemberStage {
	switch {
	case s.Entered:
		return wire.MemberStage_MEMBER_STAGE_ENTERED
	case s.Admitted:
		return wire.MemberStage_MEMBER_STAGE_ADMITTED
	}
	return wire.MemberStage_MEMBER_STAGE_NEW
}

// Millis converts to milliseconds. Any negative duration stays negative, because it means unknown.
func Millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}
