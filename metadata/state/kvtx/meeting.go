package kvtx

import "github.com/morainefs/moraine"

// Met is a delegated directory. It is another session's, unless the request met those of all (tree.MeetAll).
type Met struct {
	Dir     moraine.InodeID
	Session moraine.SessionID // that has it
}

// Meeting collects the delegated directories that a request reads. The state may lack what
// their sessions have changed, so a request that met one has no effect and no answer.
type Meeting struct {
	// Session is the caller's; 0 if it has none. It meets no directory of its own.
	Session moraine.SessionID
	Met     []Met
}

// MayMeet makes the command meet the delegations of other sessions.
func (t *Tx) MayMeet(session moraine.SessionID) {
	t.meeting = Meeting{Session: session}
	t.Meeting = &t.meeting
}

// Forgo makes the request meet none of the directories that it has read.
func (v *View) Forgo() {
	if v.Meeting != nil {
		v.Meeting.Met = nil
	}
}

// Meet notes that the request reads a directory that is delegated. It does nothing for requests
// without the rule, and for the caller's own directories.
func (v *View) Meet(dir moraine.InodeID, session moraine.SessionID) {
	m := v.Meeting
	if m == nil || session == m.Session {
		return
	}
	for _, met := range m.Met {
		if met.Dir == dir {
			return
		}
	}
	m.Met = append(m.Met, Met{dir, session})
}
