// Package work has the requests of movers: they lease jobs, renew and finish
// them. It knows every kind of job and calls the package that owns the kind. It
// also runs the pieces of jobs that the leader does by itself.
//
// LeaseJobs picks pending jobs and prepares each for its mover. FinishJob ends
// it or has it tried again; ReleaseJob then does what the end means to the
// stripe, file or checkpoint.
package work
