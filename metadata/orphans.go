package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// A file that lost its last name lingers until each session that may have it open had time to keep
// it. A session states with each renewal up to which number it has done so. The leader ends the
// lingering of what all of them have passed, and of what is older than two session terms: so
// no session can hold the space of removed files for longer.

// issued is the last number of an orphan at a time.
type issued struct {
	at     time.Time
	number uint64
}

// hasKept records that a session keeps what it has open of the orphans up to a number.
func (s *sessions) hasKept(id, number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ses := s.byID[id]; ses != nil {
		ses.kept = max(ses.kept, number)
	}
}

// passed returns the number up to which no session still needs time. last is the last number that
// was issued, as of now.
func (s *sessions) passed(last uint64, now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	upto := last
	for _, ses := range s.byID {
		if ses.opens {
			upto = min(upto, ses.kept)
		}
	}
	if n := len(s.issued); n == 0 || s.issued[n-1].number != last {
		s.issued = append(s.issued, issued{now, last})
	}
	for len(s.issued) > 1 && now.Sub(s.issued[1].at) > 2*s.timeout {
		s.issued = s.issued[1:]
	}
	if first := s.issued[0]; now.Sub(first.at) > 2*s.timeout {
		upto = max(upto, first.number)
	}
	return upto
}

// endLingers ends the lingering of orphans that no session still needs time for.
func (d *sessionDesk) endLingers(ctx context.Context, now time.Time) error {
	for range maxExpireCommands {
		var oldest, last uint64
		err := d.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
			oldest, last, err = names.Lingers(d.Machine.View(r))
			return err
		})
		if err != nil {
			return err
		}
		upto := d.sessions.passed(last, now)
		if oldest == 0 || oldest > upto {
			return nil
		}
		_, err = d.Command(ctx, &statepb.Command{Op: &statepb.Command_EndLingers{EndLingers: &statepb.EndLingers{Upto: upto}}})
		if err != nil {
			return err
		}
		if d.Clock.Since(now) > lead.TickEvery/2 {
			return nil
		}
	}
	return nil
}

// lingered returns the number of the last orphan that a reply to a session may name. Its client must not
// open a later file by a name that its cache still has.
func (d *sessionDesk) lingered(id uint64) (last uint64, err error) {
	err = d.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		_, last, err = names.Lingers(d.Machine.View(r))
		return err
	})
	if err != nil {
		return 0, err
	}
	return d.server.lease.Settled(id, last), nil
}
