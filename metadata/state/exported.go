package state

import (
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// What other packages use, by the names that it has had here.

const MaxReportedObjects = record.MaxReportedObjects

type Sum = record.Sum

type Hold = record.Hold

const JobLeaseMillis = record.JobLeaseMillis

const MaxLeaseJobs = record.MaxLeaseJobs

const MaxJobTries = record.MaxJobTries

const MaxEndedJobs = record.MaxEndedJobs

const MaxObjectKey = record.MaxObjectKey

const MaxPieces = record.MaxPieces

type RebalanceSettings = record.RebalanceSettings

type Principal = record.Principal

func PrincipalOf(c *statepb.Caller) (p Principal) { return record.PrincipalOf(c) }

const ReasonSilent = record.ReasonSilent

type SessionInfo = record.SessionInfo
