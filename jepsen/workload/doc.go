// Package workload asks a cluster for decisions, in the ways in which strict quotas have been seen to break: at the
// edge of a window, again with an id whose outcome is not known, across moves, with weights, over groups, in a burst
// after silence. Each way is a Kind, with principals and classes of its own; PolicyOf puts the classes of several into
// one policy. What is asked for is at least three times what the limits admit, since a limit that is never reached
// shows nothing.
//
// Start runs kinds against nodes until the Crowd is stopped, and tells a Recorder of every attempt. Clients ask over
// HTTP, over gRPC, and through the SDK; three in four are pinned to one node, the others ask any. A client that does
// not learn what came of an attempt goes on under another name, so that the attempts of one name never overlap. In a
// burst each attempt has a name of its own.
//
// Nothing here judges. Repeats of an id are sent within its class's replay horizon only, measured from the first
// sending; one that is answered later may be a decision of its own. An id is reused with other parameters only once its
// decision was answered as recorded: decision_id_conflict is then the only right answer.
package workload
