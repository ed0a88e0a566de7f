package kvtx

import "github.com/morainefs/moraine"

// MustSpeak fails while the state is below a feature level. A command may change its effect, or
// exist, only from a level on, so that servers of two builds apply a log identically. A leader
// proposes none of that level's commands below it. docs/formats/log-entry.md lists the levels;
// moraine.FeatureLevel is the last.
func (t *Tx) MustSpeak(op string, level uint64) error {
	c, err := t.Cluster()
	if err == nil && c.FeatureLevel < level {
		err = Fail(moraine.Unimplemented, op, "", "the request needs feature level %d, which the cluster does not have: finish the upgrade first (`moraine cluster upgrade --finish`)", level)
	}
	return err
}
