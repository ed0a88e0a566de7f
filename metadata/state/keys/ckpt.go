package keys

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// ckptKeys are the keys of runs and checkpoints.
type ckptKeys struct{ partition }

func (k ckptKeys) Run(r moraine.RunID) []byte { return k.U64(record.TabRun, uint64(r)) }

func (k ckptKeys) Attempt(r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(k.Key(record.TabAttempt, 12), uint64(r)), attempt)
}

func (k ckptKeys) Launch(r moraine.RunID, launch string) []byte {
	return append(record.Be64(k.Key(record.TabLaunch, 8+len(launch)), uint64(r)), launch...)
}

func (k ckptKeys) RunJob(r moraine.RunID, job string) []byte {
	return append(record.Be64(k.Key(record.TabRunJob, 8+len(job)), uint64(r)), job...)
}

func (k ckptKeys) Steps(r moraine.RunID) []byte { return k.U64(record.TabStep, uint64(r)) }

func (k ckptKeys) Step(s record.StepID) []byte { return s.Append(k.Key(record.TabStep, 20)) }

func (k ckptKeys) Parts(s record.StepID) []byte { return s.Append(k.Key(record.TabPart, 24)) }

func (k ckptKeys) Part(s record.StepID, rank uint32) []byte { return record.Be32(k.Parts(s), rank) }

func (k ckptKeys) Claims(s record.StepID) []byte { return s.Append(k.Key(record.TabClaim, 36)) }

func (k ckptKeys) Claim(s record.StepID, group []byte) []byte { return append(k.Claims(s), group...) }

func (k ckptKeys) OpenStep(s record.StepID) []byte { return s.Append(k.Key(record.TabOpenStep, 20)) }

func (k ckptKeys) RunCommits(r moraine.RunID) []byte { return k.U64(record.TabRunCommit, uint64(r)) }

func (k ckptKeys) RunCommit(s record.StepID) []byte {
	s.Step = ^s.Step // so that a scan finds the latest step first
	return s.Append(k.Key(record.TabRunCommit, 20))
}

func (k ckptKeys) StepBlocks(s record.StepID) []byte { return s.Append(k.Key(record.TabStepBlock, 24)) }

func (k ckptKeys) StepBlock(s record.StepID, block uint32) []byte {
	return record.Be32(k.StepBlocks(s), block)
}

func (k ckptKeys) SessionSteps(s moraine.SessionID) []byte {
	return k.U64(record.TabSessionStep, uint64(s))
}

func (k ckptKeys) SessionStep(s moraine.SessionID, id record.StepID, rank uint32) []byte {
	return record.Be32(id.Append(record.Be64(k.Key(record.TabSessionStep, 32), uint64(s))), rank)
}

func (k ckptKeys) AttemptSessions(r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(k.Key(record.TabRunAtt, 20), uint64(r)), attempt)
}

func (k ckptKeys) AttemptSession(r moraine.RunID, attempt uint32, s moraine.SessionID) []byte {
	return record.Be64(k.AttemptSessions(r, attempt), uint64(s))
}

func (k ckptKeys) SessionAttempts(s moraine.SessionID) []byte {
	return k.U64(record.TabSessRun, uint64(s))
}

func (k ckptKeys) SessionAttempt(s moraine.SessionID, r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(record.Be64(k.Key(record.TabSessRun, 20), uint64(s)), uint64(r)), attempt)
}

func (k ckptKeys) StepLeases(s record.StepID) []byte { return s.Append(k.Key(record.TabStepLease, 28)) }

func (k ckptKeys) StepLease(s record.StepID, reader moraine.SessionID) []byte {
	return record.Be64(k.StepLeases(s), uint64(reader))
}

func (k ckptKeys) SessionLeases(reader moraine.SessionID) []byte {
	return k.U64(record.TabSessLease, uint64(reader))
}

func (k ckptKeys) SessionLease(reader moraine.SessionID, s record.StepID) []byte {
	return s.Append(record.Be64(k.Key(record.TabSessLease, 28), uint64(reader)))
}

func (k ckptKeys) Adopt(i moraine.InodeID) []byte { return k.U64(record.TabAdopt, uint64(i)) }
