// Package jobs keeps the records of background jobs and their indexes: pending,
// leased and ended ones, and how many a session owns. What a job does is not
// here.
//
// AddJob writes a pending job. package work leases it to a mover, which puts it
// in the index of leases. RetryJob makes it pending again after a wait that
// grows, and EndJob ends it: the transaction's space then tells the owner of
// the job, by JobEnded.
package jobs
