package agent

import (
	"sync"
	"time"
)

const (
	// connLogInterval is the least time between two log lines about the connections of one user.
	connLogInterval = time.Minute
	// maxConnLogUsers bounds the users of whom the log knows the last line.
	maxConnLogUsers = 1000
)

// connLog spaces the log lines about connections that ended by an error: any user of the node can cause as many
// as it likes. The zero connLog is ready.
type connLog struct {
	mu    sync.Mutex
	users map[uint32]*connLines
}

type connLines struct {
	last       time.Time
	suppressed int // since then
}

// due reports whether a line about a user may be written, and how many were not since the last one.
func (l *connLog) due(uid uint32, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[uid]
	if u != nil && now.Sub(u.last) < connLogInterval {
		u.suppressed++
		return 0, false
	}
	if u != nil {
		suppressed = u.suppressed
	}
	if l.users == nil || len(l.users) >= maxConnLogUsers {
		l.users = map[uint32]*connLines{}
	}
	l.users[uid] = &connLines{last: now}
	return suppressed, true
}

// broken counts a connection that ended by an error, and logs it.
func (c *conn) broken(err error) {
	c.a.metrics.BrokenConns.Inc()
	if suppressed, ok := c.a.connLog.due(c.uid, time.Now()); ok {
		c.a.log.Info("connection ended", "uid", c.uid, "err", err, "suppressed", suppressed)
	}
}
